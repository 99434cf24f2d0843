"""Laws that hold for every graph: random ones, through the engine's own observer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine_graphs import chains, graphs, with_ops
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.demand import WeightRead
from twin.engine.observer import Counters, Load
from twin.engine.options import EngineOptions
from twin.engine.reference import simulate
from twin.engine.timeline import Timeline
from twin.graph.step_graph import Op, StepGraph

# Times lie on a grid of 2**-30 us; sums of a few of them stay within this.
SLACK = 1e-6
GRID_US = 2.0**-30
SHORTEST_US = 1e-4
RATES = {
    "hbm_gbps": "hbm_read_gbps",
    "l2_gbps": "l2_gbps",
    "sdma_gbps": "sdma_gbps",
    "link_out_gbps": "link_gbps",
    "link_in_gbps": "link_gbps",
}
OPTIONS = st.builds(
    EngineOptions,
    contention=st.just(True),
    unfinished_prefetch=st.sampled_from(["continues", "stops"]),
)


class Work:
    """Integrates the speed of every body: 1 is one whole body."""

    def __init__(self) -> None:
        self.done: dict[int, float] = defaultdict(float)
        self._since: dict[int, tuple[float, float]] = {}

    def speed(self, time_us: float, op: int, speed_per_us: float, loads: Sequence[Load]) -> None:
        since, speed = self._since.get(op, (time_us, 0.0))
        self.done[op] += (time_us - since) * speed
        self._since[op] = (time_us, speed_per_us)

    def cores(self, time_us: float, die: int, aic: int, aiv: int) -> None:
        """Cores are looked at elsewhere."""

    def resident(self, time_us: float, die: int, bytes_: float) -> None:
        """L2 is looked at elsewhere."""


@given(graph=graphs())
def test_work_is_conserved(graph: StepGraph) -> None:
    work = Work()
    records = simulate(graph, observer=work).records
    for op, done in work.done.items():
        body_us = records[op].body_us
        # Ends lie on the time grid, so a body of a few grid steps is only whole to rounding.
        if body_us > SHORTEST_US:
            assert done == pytest.approx(1.0, abs=len(graph.ops) * GRID_US / SHORTEST_US)


@given(graph=graphs(), options=OPTIONS)
def test_no_resource_is_used_above_its_rate(graph: StepGraph, options: EngineOptions) -> None:
    counters = Counters()
    simulate(graph, options, counters)
    for (_, name), series in counters.series.items():
        if name in RATES:
            most = graph.hardware[RATES[name]]
            assert all(value <= most * (1 + 1e-9) for _, value in series)
        if name == "l2_resident_bytes":
            most = graph.hardware["l2_usable_bytes"]
            assert all(value <= most * (1 + 1e-9) + 1e-6 for _, value in series)


@given(graph=graphs(), options=OPTIONS)
def test_no_core_is_granted_twice(graph: StepGraph, options: EngineOptions) -> None:
    timeline = simulate(graph, options)
    for kind in ("aic", "aiv"):
        most = graph.hardware.count(f"{kind}_count")
        for die in graph.dies:
            changes: list[tuple[float, int]] = []
            for op, record in zip(graph.ops, timeline.records, strict=True):
                if op.die == die.index and record.end_us > record.start_us:
                    cores = getattr(op.cores, kind)
                    changes += [(record.start_us, cores), (record.end_us, -cores)]
            held = 0
            for _, change in sorted(changes):
                held += change
                assert 0 <= held <= most


@given(graph=graphs(), options=OPTIONS)
def test_order_dependencies_gaps_and_collectives_hold(
    graph: StepGraph, options: EngineOptions
) -> None:
    records = simulate(graph, options).records
    last: dict[tuple[int, str], int] = {}
    together: dict[str, set[float]] = defaultdict(set)
    for op in graph.ops:
        record = records[op.index]
        before = last.get((op.die, op.stream))
        free = records[before].end_us if before is not None else 0.0
        assert record.start_us >= free + op.gap_us - SLACK
        assert record.start_us >= op.release_us - SLACK
        assert all(record.start_us >= records[dep].end_us - SLACK for dep in op.deps)
        assert record.end_us >= record.start_us + op.demand.head_us - SLACK
        assert record.wait_us == pytest.approx(record.start_us - free, abs=SLACK)
        if op.rendezvous is not None:
            together[op.rendezvous].add(record.end_us)
        last[op.die, op.stream] = op.index
    assert all(len(ends) == 1 for ends in together.values())


@given(graph=graphs(), options=OPTIONS)
def test_the_same_graph_gives_the_same_timeline(graph: StepGraph, options: EngineOptions) -> None:
    assert simulate(graph, options) == simulate(graph, options)


@given(chain=chains(), factor=st.floats(1.0, 4.0))
def test_a_stronger_die_is_never_slower_for_a_chain(chain: StepGraph, factor: float) -> None:
    stronger = chain.hardware.with_values(
        {name: chain.hardware[name] * factor for name in set(RATES.values())}
    )
    ops = tuple(
        replace(
            op,
            demand=replace(
                op.demand,
                head_us=op.demand.head_us / factor,
                hbm_cap_gbps=op.demand.hbm_cap_gbps * factor,
                l2_cap_gbps=op.demand.l2_cap_gbps * factor,
            ),
        )
        for op in chain.ops
    )
    fast = simulate(replace(chain, hardware=stronger, ops=ops))
    assert fast.makespan_us <= simulate(chain).makespan_us + SLACK


@given(graph=graphs(), options=OPTIONS)
def test_no_prefetch_equals_prefetch_of_nothing(graph: StepGraph, options: EngineOptions) -> None:
    def emptied(op: Op) -> Op:
        fills = op.demand.fills
        if fills is None:
            return op
        nothing = replace(
            op.demand, hbm_bytes=0.0, sdma_bytes=0.0, fills=WeightRead(fills.weight, 0.0)
        )
        return replace(op, demand=nothing)

    nothing = replace(graph, ops=tuple(emptied(op) for op in graph.ops))
    without = with_ops(graph, [op for op in graph.ops if op.demand.fills is None])
    kept = [
        replace(record, index=0)
        for op, record in zip(nothing.ops, simulate(nothing, options).records, strict=True)
        if op.demand.fills is None
    ]
    assert kept == [replace(record, index=0) for record in simulate(without, options).records]


@given(graph=graphs(prefetches=False))
def test_no_step_ends_below_its_bound(graph: StepGraph) -> None:
    timeline = simulate(graph)
    assert timeline.makespan_us >= _critical_path_us(graph, timeline) - SLACK
    for die in graph.dies:
        traffic = sum(op.demand.hbm_bytes for op in graph.ops if op.die == die.index)
        assert timeline.makespan_us >= traffic / (graph.hardware["hbm_read_gbps"] * 1e3) - SLACK


def _critical_path_us(graph: StepGraph, timeline: Timeline) -> float:
    """Longest chain of heads and bodies at full rates, cores and sharing left out."""
    hardware = graph.hardware
    ends: list[float] = []
    last: dict[tuple[int, str], float] = {}
    for op in graph.ops:
        demand = op.demand
        body = max(
            demand.cube_us,
            demand.vector_us,
            demand.latency_us,
            demand.hbm_bytes / (hardware["hbm_read_gbps"] * 1e3),
            demand.sdma_bytes / (hardware["sdma_gbps"] * 1e3),
            demand.link_bytes / (hardware["link_gbps"] * 1e3),
        )
        free = last.get((op.die, op.stream), 0.0) + op.gap_us
        ready = max([free, op.release_us, *(ends[dep] for dep in op.deps)])
        ends.append(ready + demand.head_us + body)
        last[op.die, op.stream] = ends[-1]
    return max(ends, default=0.0)


@given(chain=chains())
def test_without_contention_a_chain_runs_as_with_it(chain: StepGraph) -> None:
    alone = simulate(chain, EngineOptions(contention=False))
    assert alone.makespan_us == pytest.approx(simulate(chain).makespan_us, rel=1e-9, abs=SLACK)
