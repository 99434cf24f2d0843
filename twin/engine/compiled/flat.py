"""FlatGraph: a StepGraph as flat arrays, made once and run often."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hardware_models.demand import Cores, Demand
from hardware_models.hardware import Hardware
from twin.engine.checks import check_graph
from twin.engine.compiled.layout import (
    CUBE,
    LATENCY,
    NONE,
    OP,
    ROW,
    VECTOR,
    Floats,
    GraphArrays,
    Ints,
    Records,
)
from twin.engine.fluid import BYTES_PER_US_AT_1_GBPS
from twin.graph.step_graph import Op, StepGraph


@dataclass(frozen=True)
class FlatGraph:
    """The arrays of a graph, and what they leave out.

    ``row_of`` gives each class of ops its row, ``rates`` are those of the hardware (see
    :class:`twin.engine.compiled.layout.Work`).
    """

    arrays: GraphArrays
    row_of: Ints
    rates: Floats

    @property
    def prefetch(self) -> npt.NDArray[np.bool_]:
        """Whether each op only brings a weight into L2."""
        return np.asarray(self.arrays.ops["fills"] != NONE)

    @property
    def dies(self) -> int:
        """Number of dies."""
        return len(self.arrays.die_queues) - 1

    @property
    def queues(self) -> int:
        """Number of streams of all dies."""
        return len(self.arrays.queue_die)


def flatten(
    graph: StepGraph, table: RowTable | None = None, kinds: Sequence[Hashable] | None = None
) -> FlatGraph:
    """One pass over the graph's ops; equal demands share a row.

    ``table`` is where rows are put (a new table when ``None``).  Ops of different ``kinds``
    are of different classes, also where their demands are equal.

    Raises:
        InputError: an amount or a reference in the graph is impossible (see
            :func:`twin.engine.checks.check_graph`).
        DeadlockError: an op asks for more cores than its die has.
    """
    check_graph(graph)
    ops = graph.ops
    die_at = {index: at for at, index in enumerate(sorted(die.index for die in graph.dies))}
    keys = sorted({(die_at[op.die], op.stream) for op in ops})
    queue_of = {key: queue for queue, key in enumerate(keys)}
    queues = [queue_of[die_at[op.die], op.stream] for op in ops]
    weights = _Numbers()
    groups = _Numbers()
    rows = table or RowTable()
    classes = _Numbers()
    row_of: list[int] = []
    reads: list[int] = []
    records = np.zeros(len(ops), OP)
    values: list[tuple[object, ...]] = []
    outs = _outs(ops, queues)
    end_out = 0
    for op, queue, out in zip(ops, queues, outs, strict=True):
        die = die_at[op.die]
        row = rows.add(op.demand, op.cores, op.gap_us)
        klass = classes.of((row, kinds[op.index] if kinds else None))
        if klass == len(row_of):
            row_of.append(row)
        first_read = len(reads)
        reads += [weights.of((die, read.weight)) for read in op.demand.weights]
        fills = op.demand.fills
        first_out, end_out = end_out, end_out + len(out)
        values.append(
            (
                queue,
                klass,
                first_out,
                end_out,
                first_read,
                NONE if fills is None else weights.of((die, fills.weight)),
                NONE if op.rendezvous is None else groups.of((op.rendezvous,)),
                die if op.peer is None else die_at[op.peer],
                op.release_us,
            )
        )
    records[:] = values
    flat_out = np.array([i for out in outs for i in out], np.int32)
    order, starts = by_number(queues, len(keys))
    group_of = records["group"]
    members = np.flatnonzero(group_of != NONE)
    group_order, group_starts = by_number(group_of[members], len(groups))
    row_array, read_bytes = rows.arrays()
    queue_die = np.array([die for die, _ in keys], np.int32)
    read_weight = np.array(reads, np.int32)
    arrays = GraphArrays(
        ops=records.view(np.recarray),
        rows=row_array,
        deps=np.bincount(flat_out, minlength=len(ops)).astype(np.int32),
        out=flat_out,
        read_weight=read_weight,
        read_bytes=read_bytes,
        die_queues=np.searchsorted(queue_die, np.arange(len(die_at) + 1)).astype(np.int32),
        queue_die=queue_die,
        queue_start=starts,
        queue_ops=order,
        group_start=group_starts,
        group_ops=members[group_order].astype(np.int32),
        weight_reads=np.bincount(read_weight, minlength=len(weights)).astype(np.int32),
        marks=np.array(graph.period_marks, np.int32),
        head_scale=np.zeros(0),
        limits=np.array(
            [graph.hardware.count("aic_count"), graph.hardware.count("aiv_count")], np.int32
        ),
    )
    return FlatGraph(
        arrays,
        row_of=np.array(row_of, np.int32),
        rates=rates_of(graph.hardware),
    )


def no_graph() -> FlatGraph:
    """A graph without dies."""
    none = np.zeros(0, np.int32)
    start = np.zeros(1, np.int32)
    arrays = GraphArrays(
        ops=np.zeros(0, OP).view(np.recarray),
        rows=np.zeros(0, ROW).view(np.recarray),
        deps=none,
        out=none,
        read_weight=none,
        read_bytes=np.zeros(0),
        die_queues=start,
        queue_die=none,
        queue_start=start,
        queue_ops=none,
        group_start=start,
        group_ops=none,
        weight_reads=none,
        marks=none,
        head_scale=np.zeros(0),
        limits=np.zeros(2, np.int32),
    )
    return FlatGraph(arrays, row_of=none, rates=np.zeros(7))


def rates_of(hardware: Hardware) -> Floats:
    """Rates of the five resources in bytes/us, usable L2 bytes, and pollution."""
    names = ("hbm_read_gbps", "l2_gbps", "sdma_gbps", "link_gbps", "link_gbps")
    rates = [hardware[name] * BYTES_PER_US_AT_1_GBPS for name in names]
    return np.array([*rates, hardware["l2_usable_bytes"], hardware["l2_pollution"]])


class RowTable:
    """Demands with the cores they are for and the launch gap before them, each once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[object, ...], int] = {}
        self._values: list[tuple[object, ...]] = []
        self._bytes: list[float] = []
        self._demands: list[Demand] = []

    def add(self, demand: Demand, cores: Cores, gap_us: float) -> int:
        """The number of the row with this demand; names of weights do not matter."""
        sizes = tuple(read.bytes for read in demand.weights)
        fill = 0.0 if demand.fills is None else demand.fills.bytes
        key = (
            gap_us,
            cores.aic,
            cores.aiv,
            demand.head_us,
            demand.cube_us,
            demand.vector_us,
            demand.latency_us,
            demand.hbm_bytes,
            demand.hbm_cap_gbps,
            demand.l2_cap_gbps,
            demand.sdma_bytes,
            demand.link_bytes,
            fill,
            sizes,
        )
        number = self._rows.setdefault(key, len(self._values))
        if number == len(self._values):
            self._values.append(self._row(demand, cores, gap_us, fill, sizes))
            self._bytes += sizes
            self._demands.append(demand)
        return number

    def demand(self, number: int) -> Demand:
        """The demand of a row, as it was added first: with the weights' names of that op."""
        return self._demands[number]

    def _row(
        self,
        demand: Demand,
        cores: Cores,
        gap_us: float,
        fill: float,
        sizes: Sequence[float],
    ) -> tuple[object, ...]:
        asked = demand.hbm_bytes
        for size in sizes:
            asked += size
        private_us, bound = demand.cube_us, CUBE
        if demand.vector_us > private_us:
            private_us, bound = demand.vector_us, VECTOR
        if demand.latency_us > private_us:
            private_us, bound = demand.latency_us, LATENCY
        return (
            0,
            cores.aic,
            cores.aiv,
            len(sizes),
            len(self._bytes),
            bound,
            private_us,
            gap_us,
            demand.head_us,
            asked,
            demand.hbm_cap_gbps * BYTES_PER_US_AT_1_GBPS,
            demand.l2_cap_gbps * BYTES_PER_US_AT_1_GBPS,
            demand.sdma_bytes,
            demand.link_bytes,
            fill,
        )

    def absent(self) -> int:
        """The number of the row of ops that are not there."""
        number = self._rows.setdefault(("absent",), len(self._values))
        if number == len(self._values):
            self._values.append((1, *[0] * (len(ROW.names or ()) - 1)))
            self._demands.append(Demand())
        return number

    def arrays(self) -> tuple[Records, Floats]:
        """The rows, and the bytes of the weights that they read."""
        return np.array(self._values, ROW).view(np.recarray), np.array(self._bytes, np.float64)


class _Numbers:
    """Numbers for keys, in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, key: tuple[object, ...]) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)


def _outs(ops: Sequence[Op], queues: Sequence[int]) -> list[list[int]]:
    """Dependents of each op, without those that its queue's order implies."""
    outs: list[list[int]] = [[] for _ in ops]
    for op, queue in zip(ops, queues, strict=True):
        for dep in dict.fromkeys(op.deps):
            if dep >= op.index or queues[dep] != queue:
                outs[dep].append(op.index)
    return outs


def by_number(numbers: Sequence[int] | np.ndarray, count: int) -> tuple[Ints, Ints]:
    """Places sorted by their number, in order within each, and where each number starts."""
    array = np.asarray(numbers, np.int32)
    order = np.argsort(array, kind="stable").astype(np.int32)
    starts = np.searchsorted(array[order], np.arange(count + 1)).astype(np.int32)
    return order, starts
