"""Running flat graphs: one at a time, with the same answers as the reference engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from hardware_models.errors import DeadlockError
from twin.engine.compiled.bound import StepBound
from twin.engine.compiled.flat import FlatGraph, RowTable, flatten, no_graph
from twin.engine.compiled.kernel import run
from twin.engine.compiled.layout import (
    BOUND_COUNT,
    BOUNDS,
    COUNTS,
    DIE,
    ENTRY,
    EVENTS,
    GROUP,
    LOAD,
    MAKESPAN,
    PERIOD,
    RECORD,
    RESOURCE,
    RESOURCES,
    SKIPPED,
    SKIPPED_AT,
    SLOT,
    TOTALS,
    Floats,
    Ints,
    Records,
    Work,
)
from twin.engine.compiled.period import repeats
from twin.engine.compiled.steady import Skip
from twin.engine.compiled.waiting import deadlock_message
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.engine.timeline import OpRecord, Timeline
from twin.graph.step_graph import StepGraph


def simulate(graph: StepGraph, options: EngineOptions = DEFAULT_OPTIONS) -> Timeline:
    """Run one step; the same as :func:`twin.engine.reference.simulate`.

    Raises:
        InputError: an amount or a reference in the graph is impossible (see
            :func:`twin.engine.checks.check_graph`).
        DeadlockError: ops wait for each other, or for cores that the die does not have.
    """
    step = Step(flatten(graph))
    if not step.run(options):
        raise DeadlockError(deadlock_message(graph, step.flat, step.work))
    return step.timeline()


def warm_up() -> float:
    """Compile the engine, or load what an earlier process compiled; the seconds it took.

    The first run does it anyway: call this where a user would wonder about the pause (about
    ten seconds once per machine), or before worker processes would each compile for themselves.
    """
    began = time.perf_counter()
    flat = no_graph()
    Step(flat).run()
    StepBound(flat, ()).us(())
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Skipped:
    """Layers that a steady run skipped, for the main stream of die 0.

    Its ops in ``missing`` have no records: they ran as those in ``repeated``, which are one
    layer, ``layers`` times.
    """

    layers: int
    repeated: range
    missing: range


class Step:
    """A flat graph with the memory to run it; runs are independent of each other."""

    def __init__(self, flat: FlatGraph) -> None:
        self.flat = flat
        self.work = make_work(flat)
        self.skip = make_skip(flat)
        self._knows_repeats = False

    def run(self, options: EngineOptions = DEFAULT_OPTIONS, *, steady: bool = False) -> bool:
        """Run the step; whether it came to its end.

        With ``steady``, layers that only repeat are skipped: :attr:`makespan_us` is the
        same, but skipped ops have no records.
        """
        flat = self.flat
        answers = self.run_many(flat.row_of[None, :], options, steady=steady)
        return bool(answers[0, 2] == 0.0)

    def run_many(
        self,
        rows_of: Ints,
        options: EngineOptions = DEFAULT_OPTIONS,
        *,
        rates: Floats | None = None,
        rates_of: Ints | None = None,
        steady: bool = False,
    ) -> Floats:
        """Run the step with other numbers; see :func:`twin.engine.compiled.kernel.run`.

        Returns:
            [run, 3]: makespan and period in us, and how many queues did not end.
        """
        if steady and not self._knows_repeats:
            self.skip = self.skip._replace(repeats=repeats(self.flat))
            self._knows_repeats = True
        count = len(rows_of)
        answers = np.empty((count, 3))
        run(
            self.flat.arrays,
            self.work,
            self.skip,
            rows_of,
            self.flat.rates[None, :] if rates is None else rates,
            np.zeros(count, np.int32) if rates_of is None else rates_of,
            answers,
            options.contention,
            options.unfinished_prefetch == "stops",
            steady,
        )
        return answers

    def set_rows(self, table: RowTable) -> None:
        """Let runs use the rows that ``table`` has by now; their numbers do not change."""
        rows, read_bytes = table.arrays()
        arrays = self.flat.arrays._replace(rows=rows, read_bytes=read_bytes)
        self.flat = replace(self.flat, arrays=arrays)

    @property
    def records(self) -> Records:
        """What the last full run recorded, one item per op; bounds by their number."""
        return self.work.records

    @property
    def makespan_us(self) -> float:
        """End of the last op that is no prefetch."""
        return float(self.work.totals[MAKESPAN])

    @property
    def period_us(self) -> float:
        """Time between the ends of two layers, after a steady run: what was repeated."""
        return float(self.work.totals[PERIOD])

    @property
    def events(self) -> int:
        """Events of the last run: instants at which some op went on."""
        return int(self.work.counts[EVENTS])

    @property
    def skipped(self) -> Skipped:
        """What the last steady run did not simulate."""
        layers = int(self.work.totals[SKIPPED])
        if layers == 0:
            return Skipped(0, range(0), range(0))
        at, marks = int(self.work.totals[SKIPPED_AT]), self.flat.arrays.marks.tolist()
        return Skipped(
            layers,
            range(marks[at - 1] + 1, marks[at] + 1),
            range(marks[at] + 1, marks[at + layers] + 1),
        )

    def timeline(self) -> Timeline:
        """The records of the last full run as objects."""
        rows = zip(self.records.tolist(), self.flat.prefetch.tolist(), strict=True)
        return Timeline(
            tuple(
                OpRecord(i, *row[:6], BOUNDS[row[6]], prefetch)  # type: ignore[call-arg]
                for i, (row, prefetch) in enumerate(rows)
            )
        )


def make_work(flat: FlatGraph) -> Work:
    """Memory for a run; the kernel sets what it needs."""
    g = flat.arrays
    ops, queues, dies = len(g.ops), flat.queues, flat.dies
    fills = int(flat.prefetch.sum())
    leaves = 1 << max(0, dies - 1).bit_length()
    return Work(
        slots=_records(queues, SLOT),
        dies=_records(dies, DIE),
        entries=_records(2 * fills + dies + 1, ENTRY),
        groups=_records(len(g.group_start) - 1, GROUP),
        records=_records(ops, RECORD),
        when=np.empty(queues),
        mask=np.empty(queues, np.uint8),
        taken=np.empty(queues, np.uint8),
        loads=_records(queues * RESOURCES, LOAD),
        resources=_records(dies * RESOURCES, RESOURCE),
        spent=np.empty(queues * BOUND_COUNT),
        speed=np.empty(queues),
        bound=np.empty(queues, np.int32),
        pool=np.empty(queues, np.int32),
        open_deps=np.empty(ops, np.int32),
        weight_first=np.empty(len(g.weight_reads), np.int32),
        was_read=np.empty(len(g.weight_reads), np.int32),
        reads_left=np.empty(len(g.weight_reads), np.int32),
        wake=np.empty(queues, np.int32),
        ends=np.empty(queues, np.int32),
        asks=np.empty(dies, np.int32),
        starts=np.empty(queues, np.int32),
        starting=np.empty(queues, np.int32),
        dirty=np.empty(dies, np.int32),
        touched=np.empty(dies, np.int32),
        stack=np.empty(leaves.bit_length() + 1, np.int32),
        counts=np.empty(COUNTS, np.int64),
        group_queues=np.empty(queues, np.int32),
        group_dies=np.empty(RESOURCES * dies + 1, np.int32),
        rising=np.empty(queues, np.int32),
        used=np.empty(dies * RESOURCES, np.int32),
        tree=np.empty(2 * leaves),
        totals=np.empty(TOTALS),
        rates=np.empty(7),
    )


def make_skip(flat: FlatGraph) -> Skip:
    """Memory for the state of a layer; nothing repeats as far as it knows."""
    queues, dies = flat.queues, flat.dies
    entries = 2 * int(flat.prefetch.sum()) + dies + 1
    return Skip(
        repeats=np.zeros(5, np.int32),
        slots=_records(queues, SLOT),
        when=np.empty(queues),
        mask=np.empty(queues, np.int32),
        asks=np.empty(dies, np.int32),
        pool=np.empty(queues, np.int32),
        entry_count=np.empty(dies, np.int32),
        entry_op=np.empty(entries, np.int32),
        entry_bytes=np.empty(entries),
    )


def _records(count: int, dtype: np.dtype[np.void]) -> Records:
    return np.zeros(count, dtype).view(np.recarray)
