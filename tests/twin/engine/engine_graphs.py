"""Small hardware, small graphs and random graphs for the tests of the engines."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st

from hardware_models.demand import Cores, Demand, OpSpec, WeightRead
from hardware_models.hardware import Hardware
from hardware_models.parameter import Parameter
from twin.engine.options import EngineOptions
from twin.engine.reference import simulate
from twin.engine.timeline import OpRecord, Timeline
from twin.graph.step_graph import PREFETCH_STREAM, Die, Op, StepGraph

KB = 1000.0
"""1 GB/s is 1000 bytes/us: 1 KB takes 1 us at 1 GB/s."""


STOPS = EngineOptions(unfinished_prefetch="stops")
ALONE = EngineOptions(contention=False)


def us(value: float) -> object:
    """Times are rounded to 2**-30 us."""
    return pytest.approx(value, abs=1e-8)


@dataclass(frozen=True, slots=True)
class TestSpec(OpSpec):
    """An op whose demand the test states itself."""

    __test__: ClassVar[bool] = False
    kind: ClassVar[str] = "test"

    def cores(self, hardware: Hardware) -> Cores:
        return Cores(hardware.count("aic_count"), hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        return Demand()


def make_hardware(**values: float) -> Hardware:
    """A die with 8 + 16 cores, HBM 10, L2 40, SDMA 5, links 2 GB/s, 100 KB of L2."""
    numbers = {
        "aic_count": 8.0,
        "aiv_count": 16.0,
        "hbm_read_gbps": 10.0,
        "l2_gbps": 40.0,
        "sdma_gbps": 5.0,
        "link_gbps": 2.0,
        "l2_usable_bytes": 100 * KB,
        "l2_pollution": 0.0,
        **values,
    }
    return Hardware(
        "test",
        {
            name: Parameter(name, value, "", value, value, "guessed", "test")
            for name, value in numbers.items()
        },
    )


@dataclass
class Builder:
    """Collects ops; deps and demand are keyword arguments."""

    hardware: Hardware = field(default_factory=make_hardware)
    dies: int = 1
    ops: list[Op] = field(default_factory=list)

    def add(
        self,
        name: str,
        *,
        die: int = 0,
        stream: str = "main",
        cores: tuple[int, int] = (0, 0),
        deps: tuple[int, ...] = (),
        gap_us: float = 0.0,
        release_us: float = 0.0,
        rendezvous: str | None = None,
        peer: int | None = None,
        **demand: Any,
    ) -> int:
        """Append an op and return its index."""
        op = Op(
            len(self.ops), name, TestSpec(), die, stream, Cores(*cores), Demand(**demand), deps,
            gap_us=gap_us, release_us=release_us, rendezvous=rendezvous, peer=peer,
        )  # fmt: skip
        self.ops.append(op)
        return op.index

    def prefetch(self, weight: str, bytes_: float, **place: Any) -> int:
        """Append a prefetch of ``weight`` on the prefetch stream."""
        place.setdefault("stream", PREFETCH_STREAM)
        return self.add(
            f"prefetch.{weight}",
            hbm_bytes=bytes_,
            sdma_bytes=bytes_,
            fills=WeightRead(weight, bytes_),
            **place,
        )

    def graph(self) -> StepGraph:
        return StepGraph(
            self.hardware,
            tuple(Die(die, "colocated") for die in range(self.dies)),
            tuple(self.ops),
        )

    def run(self, *args: Any) -> dict[str, OpRecord]:
        """Simulate; records by op name."""
        return by_name(self.graph(), simulate(self.graph(), *args))


def by_name(graph: StepGraph, timeline: Timeline) -> dict[str, OpRecord]:
    return {op.name: record for op, record in zip(graph.ops, timeline.records, strict=True)}


def with_ops(graph: StepGraph, ops: list[Op]) -> StepGraph:
    """The graph with these of its ops, in their order, indices and deps renumbered."""
    place = {op.index: position for position, op in enumerate(ops)}
    kept = [
        replace(op, index=place[op.index], deps=tuple(place[dep] for dep in op.deps)) for op in ops
    ]
    return replace(graph, ops=tuple(kept))


# Whole numbers make many simultaneous events, the odd fractions make few.
_us = st.one_of(st.integers(0, 6).map(float), st.floats(0.0, 6.0, allow_subnormal=False))
_bytes = st.one_of(
    st.integers(0, 30).map(lambda n: n * KB), st.floats(0.0, 30 * KB, allow_subnormal=False)
)
_caps = st.sampled_from([0.0, 1.0, 3.0, 20.0])


@st.composite
def hardwares(draw: st.DrawFn) -> Hardware:
    """Dies of varied strength with 8 + 16 cores."""
    return make_hardware(
        hbm_read_gbps=draw(st.sampled_from([3.0, 7.0, 10.0])),
        l2_gbps=draw(st.sampled_from([5.0, 17.0, 40.0])),
        sdma_gbps=draw(st.sampled_from([1.0, 5.0, 30.0])),
        link_gbps=draw(st.sampled_from([0.7, 2.0])),
        l2_usable_bytes=draw(st.sampled_from([0.0, 13 * KB, 40 * KB, 1000 * KB])),
        l2_pollution=draw(st.sampled_from([0.0, 0.3, 1.0])),
    )


@st.composite
def chains(draw: st.DrawFn) -> StepGraph:
    """Ops on one stream of one die, without prefetches."""
    builder = Builder(draw(hardwares()))
    for n in range(draw(st.integers(1, 8))):
        builder.add(
            f"op{n}",
            cores=(draw(st.integers(0, 8)), draw(st.integers(0, 16))),
            gap_us=draw(_us),
            **draw(_demands()),
        )
    return builder.graph()


@st.composite
def _demands(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "head_us": draw(_us),
        "cube_us": draw(_us),
        "vector_us": draw(_us),
        "latency_us": draw(st.sampled_from([0.0, 0.0, 2.0])),
        "hbm_bytes": draw(_bytes),
        "sdma_bytes": draw(st.sampled_from([0.0, 0.0, 4 * KB])),
        "hbm_cap_gbps": draw(_caps),
        "l2_cap_gbps": draw(_caps),
    }


@st.composite
def graphs(
    draw: st.DrawFn, *, prefetches: bool = True, never_wait_for_cores: bool | None = None
) -> StepGraph:
    """Random graphs that can finish.

    Deps point backwards and the members of a collective stand together, so the first op
    that has not ended can always go on - unless cores that it needs are held by a member
    that waits for it.  Therefore either collectives hold no cores, or all ops are so narrow
    that cores never run out.  Nothing depends on a prefetch.
    """
    dies = draw(st.integers(1, 3))
    narrow = draw(st.booleans()) if never_wait_for_cores is None else never_wait_for_cores
    most = (2, 4) if narrow else (8, 16)
    builder = Builder(draw(hardwares()), dies)
    brought: list[list[str]] = [[] for _ in range(dies)]
    usable: list[int] = []
    kinds = ["op", "op", "op", "collective", "transfer"] + ["prefetch"] * (2 * prefetches)
    for n in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(kinds))
        die = draw(st.integers(0, dies - 1))
        some = st.lists(st.sampled_from(usable), max_size=2, unique=True) if usable else st.just([])
        deps = tuple(draw(some))
        cores = (draw(st.integers(0, most[0])), draw(st.integers(0, most[1])))
        gap_us, release_us = draw(_us), draw(st.sampled_from([0.0, 0.0, 9.0]))
        if kind == "prefetch":
            weight = f"w{n}"
            brought[die].append(weight)
            builder.prefetch(weight, draw(_bytes), die=die, deps=deps)
        elif kind == "transfer":
            peer = draw(st.integers(0, dies - 1))
            usable.append(
                builder.add(
                    f"op{n}",
                    die=die,
                    stream="link",
                    deps=deps,
                    gap_us=gap_us,
                    peer=peer,
                    head_us=draw(_us),
                    link_bytes=draw(_bytes),
                    hbm_bytes=draw(_bytes),
                )
            )
        elif kind == "collective":
            stream = draw(st.sampled_from(["main", "moe"]))
            for member in range(dies):
                usable.append(
                    builder.add(
                        f"op{n}.{member}",
                        die=member,
                        stream=stream,
                        deps=deps,
                        cores=cores if narrow else (0, 0),
                        rendezvous=f"r{n}",
                        head_us=draw(_us),
                        latency_us=draw(_us),
                        link_bytes=draw(_bytes),
                    )
                )
        else:
            weights = []
            if brought[die] and draw(st.booleans()):
                weights.append(WeightRead(brought[die].pop(0), draw(_bytes)))
            usable.append(
                builder.add(
                    f"op{n}",
                    die=die,
                    stream=draw(st.sampled_from(["main", "moe"])),
                    cores=cores,
                    deps=deps,
                    gap_us=gap_us,
                    release_us=release_us,
                    weights=tuple(weights),
                    **draw(_demands()),
                )
            )
    return builder.graph()
