"""Properties of the reference engine on random graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from engine_graphs import chains, graphs, with_ops
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_models.demand import Demand, WeightRead
from hardware_models.hardware import Hardware
from twin.engine.observer import Counters, Load
from twin.engine.options import EngineOptions
from twin.engine.reference import simulate
from twin.engine.timeline import OpRecord
from twin.graph.step_graph import Die, Op, StepGraph

OPTIONS = [
    EngineOptions(contention=contention, unfinished_prefetch=mode)
    for contention in (True, False)
    for mode in ("continues", "stops")
]
many = settings(max_examples=80, deadline=None)
any_options = st.sampled_from(OPTIONS)

GRID_SLACK_US = 1e-8
"""Each of some dozen events is rounded by up to half of 2**-30 us."""


@dataclass
class SpeedLog(Counters):
    """Counters that also integrate what each op's body did."""

    done: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    moved: dict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))
    _running: dict[int, tuple[float, float, Sequence[Load]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def speed(self, time_us: float, op: int, speed_per_us: float, loads: Sequence[Load]) -> None:
        super().speed(time_us, op, speed_per_us, loads)
        since, speed, old = self._running.get(op, (time_us, 0.0, loads))
        self.done[op] += speed * (time_us - since)
        for resource, _, amount in old:
            self.moved[op, resource] += amount * speed * (time_us - since)
        self._running[op] = (time_us, speed_per_us, loads)


def is_prefetch(op: Op) -> bool:
    return op.demand.fills is not None


def streams(graph: StepGraph) -> list[list[Op]]:
    found: dict[tuple[int, str], list[Op]] = defaultdict(list)
    for op in graph.ops:
        found[op.die, op.stream].append(op)
    return list(found.values())


def ready_times(graph: StepGraph, records: Sequence[OpRecord]) -> list[float]:
    ready = [0.0] * len(graph.ops)
    for stream in streams(graph):
        previous = 0.0
        for op in stream:
            deps_end = max((records[dep].end_us for dep in op.deps), default=0.0)
            ready[op.index] = max(previous + op.gap_us, deps_end, op.release_us)
            previous = records[op.index].end_us
    return ready


@many
@given(graphs(), any_options)
def test_work_is_conserved(graph: StepGraph, options: EngineOptions) -> None:
    """What bodies moved is what their ops demand, and a whole body was done."""
    log = SpeedLog()
    records = simulate(graph, options, log).records
    for op, record in zip(graph.ops, records, strict=True):
        demand = op.demand
        asked = demand.hbm_bytes + sum(read.bytes for read in demand.weights)
        assert 0.0 <= record.resident_bytes <= sum(read.bytes for read in demand.weights)
        expected = {
            "hbm": asked - record.resident_bytes,
            "l2": asked,
            "sdma": demand.sdma_bytes,
            "link_out": demand.link_bytes,
            "link_in": demand.link_bytes,
        }
        stopped = options.unfinished_prefetch == "stops" and is_prefetch(op)
        for resource, amount in expected.items():
            moved = log.moved[op.index, resource]
            assert moved <= amount + 0.001, "bytes; the rates are some thousand bytes/us"
            assert stopped or moved == pytest.approx(amount, rel=1e-6, abs=0.001)
        if not stopped and op.index in log.done:
            own_us = record.body_us - record.peer_wait_us
            assert abs(log.done[op.index] - 1.0) * own_us <= GRID_SLACK_US


@many
@given(graphs(), st.sampled_from(["continues", "stops"]))
def test_resources_are_never_above_their_rate(graph: StepGraph, mode: str) -> None:
    counters = Counters()
    simulate(graph, EngineOptions(unfinished_prefetch=mode), counters)
    rates = {
        "hbm_gbps": graph.hardware["hbm_read_gbps"],
        "l2_gbps": graph.hardware["l2_gbps"],
        "sdma_gbps": graph.hardware["sdma_gbps"],
        "link_out_gbps": graph.hardware["link_gbps"],
        "link_in_gbps": graph.hardware["link_gbps"],
        "l2_resident_bytes": graph.hardware["l2_usable_bytes"],
        "aic": graph.hardware["aic_count"],
        "aiv": graph.hardware["aiv_count"],
    }
    for (_, counter), series in counters.series.items():
        assert all(0.0 <= value <= rates[counter] * (1 + 1e-9) for _, value in series)
        assert counter == "l2_resident_bytes" or series[-1][1] == 0.0


@many
@given(graphs(), any_options)
def test_cores_are_never_granted_twice(graph: StepGraph, options: EngineOptions) -> None:
    """Counted from the records alone; ends go before starts of the same instant."""
    records = simulate(graph, options).records
    changes = []
    for op, record in zip(graph.ops, records, strict=True):
        if record.end_us > record.start_us:
            changes.append((record.start_us, 1, op))
            changes.append((record.end_us, 0, op))
    aic: dict[int, int] = defaultdict(int)
    aiv: dict[int, int] = defaultdict(int)
    for _, starts, op in sorted(changes, key=lambda change: change[:2]):
        sign = 1 if starts else -1
        aic[op.die] += sign * op.cores.aic
        aiv[op.die] += sign * op.cores.aiv
        assert aic[op.die] <= graph.hardware["aic_count"]
        assert aiv[op.die] <= graph.hardware["aiv_count"]


@many
@given(graphs(), any_options)
def test_order_and_waits(graph: StepGraph, options: EngineOptions) -> None:
    records = simulate(graph, options).records
    ready = ready_times(graph, records)
    requests: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for op, record in zip(graph.ops, records, strict=True):
        assert record.index == op.index
        assert record.start_us >= ready[op.index] - GRID_SLACK_US
        head_us = record.end_us - record.start_us - record.body_us
        skipped = is_prefetch(op) and record.end_us == record.start_us
        assert skipped or head_us == pytest.approx(op.demand.head_us, abs=GRID_SLACK_US)
        assert 0.0 <= record.peer_wait_us <= record.body_us
        assert op.rendezvous is not None or record.peer_wait_us == 0.0
        if op.cores.aic or op.cores.aiv:
            requests[op.die].append((ready[op.index], record.start_us))
        else:
            assert record.start_us == pytest.approx(ready[op.index], abs=GRID_SLACK_US)
    for stream in streams(graph):
        previous = 0.0
        for op in stream:
            record = records[op.index]
            assert record.wait_us == record.start_us - previous >= 0.0
            previous = record.end_us
    for asked in requests.values():
        asked.sort()
        for (ready_a, start_a), (ready_b, start_b) in pairwise(asked):
            assert ready_b - ready_a < GRID_SLACK_US or start_a <= start_b, (
                "first come first served"
            )


@many
@given(graphs(), any_options)
def test_collectives_meet(graph: StepGraph, options: EngineOptions) -> None:
    records = simulate(graph, options).records
    members: dict[str, list[OpRecord]] = defaultdict(list)
    for op in graph.ops:
        if op.rendezvous is not None:
            members[op.rendezvous].append(records[op.index])
    for group in members.values():
        last_head = max(record.end_us - record.body_us for record in group)
        assert len({record.end_us for record in group}) == 1
        for record in group:
            before = last_head - (record.end_us - record.body_us)
            assert before - GRID_SLACK_US <= record.peer_wait_us
        assert min(record.peer_wait_us for record in group) >= 0.0
        assert any(
            record.peer_wait_us == pytest.approx(last_head - (record.end_us - record.body_us))
            for record in group
        ), "the member whose body ends last waits only for its start"


@many
@given(graphs(), any_options)
def test_same_graph_same_timeline(graph: StepGraph, options: EngineOptions) -> None:
    assert simulate(graph, options) == simulate(graph, options)


@many
@given(graphs(), any_options, st.randoms(use_true_random=False))
def test_numbers_of_dies_do_not_matter(graph: StepGraph, options: EngineOptions, random) -> None:
    """Dies renumbered, listed and issued in another order: each op runs at the same time."""
    names = [die.index for die in graph.dies]
    random.shuffle(names)
    ops = [
        replace(op, die=names[op.die], peer=None if op.peer is None else names[op.peer])
        for op in graph.ops
    ]
    ops.sort(key=lambda op: op.die)
    other = replace(
        with_ops(graph, ops), dies=tuple(Die(die, "colocated") for die in reversed(names))
    )
    records = simulate(graph, options).records
    for old, new in zip(ops, simulate(other, options).records, strict=True):
        assert new.start_us == pytest.approx(records[old.index].start_us, abs=GRID_SLACK_US)
        assert new.end_us == pytest.approx(records[old.index].end_us, abs=GRID_SLACK_US)
        assert new.bound == records[old.index].bound


@many
@given(graphs(), any_options)
def test_copies_of_a_step_on_more_dies_run_alike(graph: StepGraph, options: EngineOptions) -> None:
    dies, count = len(graph.dies), len(graph.ops)
    copies = [
        replace(
            op,
            index=op.index + count,
            die=op.die + dies,
            deps=tuple(dep + count for dep in op.deps),
            peer=None if op.peer is None else op.peer + dies,
            rendezvous=None if op.rendezvous is None else op.rendezvous + "'",
        )
        for op in graph.ops
    ]
    twice = replace(
        graph,
        ops=(*graph.ops, *copies),
        dies=tuple(Die(die, "colocated") for die in range(2 * dies)),
    )
    records = simulate(twice, options).records
    for one, other in zip(records[:count], records[count:], strict=True):
        assert replace(other, index=one.index) == one
    assert records[:count] == simulate(graph, options).records


def stronger(graph: StepGraph, faster: float, shorter: float) -> StepGraph:
    """More bandwidth on the die and per core, shorter heads."""
    values = {n: graph.hardware[n] * faster for n in ("hbm_read_gbps", "l2_gbps", "sdma_gbps")}
    ops = [
        replace(
            op,
            demand=replace(
                op.demand,
                head_us=op.demand.head_us * shorter,
                hbm_cap_gbps=op.demand.hbm_cap_gbps * faster,
                l2_cap_gbps=op.demand.l2_cap_gbps * faster,
            ),
        )
        for op in graph.ops
    ]
    return replace(graph, hardware=graph.hardware.with_values(values), ops=tuple(ops))


@many
@given(chains(), st.floats(1.0, 5.0), st.floats(0.0, 1.0), any_options)
def test_a_stronger_die_is_never_slower_for_a_chain(
    graph: StepGraph, faster: float, shorter: float, options: EngineOptions
) -> None:
    slow = simulate(graph, options).records
    fast = simulate(stronger(graph, faster, shorter), options).records
    for before, after in zip(slow, fast, strict=True):
        assert after.end_us <= before.end_us + GRID_SLACK_US


@many
@given(graphs(), any_options)
def test_no_prefetch_equals_prefetch_of_nothing(graph: StepGraph, options: EngineOptions) -> None:
    nothing = replace(
        graph,
        ops=tuple(
            replace(op, demand=Demand(fills=WeightRead(op.demand.fills.weight, 0.0)))
            if op.demand.fills is not None
            else op
            for op in graph.ops
        ),
    )
    without = with_ops(graph, [op for op in graph.ops if not is_prefetch(op)])
    kept = [r for r in simulate(nothing, options).records if not r.prefetch]
    for one, other in zip(kept, simulate(without, options).records, strict=True):
        assert replace(one, index=other.index) == other


def alone_us(op: Op, record: OpRecord, hardware: Hardware) -> float:
    """The body with every resource to itself, written out once more from design.md."""
    demand = op.demand
    total = demand.hbm_bytes + sum(read.bytes for read in demand.weights)
    hbm = total - record.resident_bytes
    pipe = hbm / demand.hbm_cap_gbps if demand.hbm_cap_gbps else 0.0
    pipe += record.resident_bytes / demand.l2_cap_gbps if demand.l2_cap_gbps else 0.0
    return max(
        demand.cube_us,
        demand.vector_us,
        demand.latency_us,
        pipe / 1000.0,
        hbm / hardware["hbm_read_gbps"] / 1000.0,
        total / hardware["l2_gbps"] / 1000.0,
        demand.sdma_bytes / hardware["sdma_gbps"] / 1000.0,
        demand.link_bytes / hardware["link_gbps"] / 1000.0,
    )


@many
@given(graphs())
def test_never_below_the_lower_bounds(graph: StepGraph) -> None:
    """Each op takes at least its head and its body alone; totals fit under the rates."""
    records = simulate(graph).records
    hardware = graph.hardware
    moved: dict[tuple[str, int], float] = defaultdict(float)
    for op, record in zip(graph.ops, records, strict=True):
        least = op.demand.head_us + alone_us(op, record, hardware)
        assert record.end_us - record.start_us >= least - GRID_SLACK_US
        asked = op.demand.hbm_bytes + sum(read.bytes for read in op.demand.weights)
        moved["hbm_read_gbps", op.die] += asked - record.resident_bytes
        moved["l2_gbps", op.die] += asked
        moved["sdma_gbps", op.die] += op.demand.sdma_bytes
        moved["link_gbps", op.die] += op.demand.link_bytes
    last = max(record.end_us for record in records)
    for (name, _), amount in moved.items():
        assert last >= amount / hardware[name] / 1000.0 - GRID_SLACK_US


@many
@given(chains())
def test_a_chain_takes_its_gaps_heads_and_bodies(graph: StepGraph) -> None:
    """A chain shares with nobody: exact, with or without contention."""
    for options in OPTIONS:
        now = 0.0
        for op, record in zip(graph.ops, simulate(graph, options).records, strict=True):
            now += op.gap_us + op.demand.head_us + alone_us(op, record, graph.hardware)
            assert record.end_us == pytest.approx(now, abs=GRID_SLACK_US)


@many
@given(graphs(prefetches=False, never_wait_for_cores=True))
def test_without_contention_nothing_is_slower(graph: StepGraph) -> None:
    """Where no op waits for cores, earlier ends cannot make anything later."""
    shared = simulate(graph).records
    free = simulate(graph, EngineOptions(contention=False)).records
    for one, other in zip(shared, free, strict=True):
        assert other.end_us <= one.end_us + GRID_SLACK_US


@many
@given(graphs())
def test_bound_names_something_that_was_asked_for(graph: StepGraph) -> None:
    needs = {
        "cube": lambda d: d.cube_us,
        "vector": lambda d: d.vector_us,
        "latency": lambda d: d.latency_us,
        "hbm_die": lambda d: d.hbm_bytes + sum(read.bytes for read in d.weights),
        "hbm_core": lambda d: d.hbm_cap_gbps,
        "l2_core": lambda d: d.l2_cap_gbps,
        "l2": lambda d: d.hbm_bytes + sum(read.bytes for read in d.weights),
        "sdma": lambda d: d.sdma_bytes,
        "link": lambda d: d.link_bytes,
    }
    for op, record in zip(graph.ops, simulate(graph).records, strict=True):
        own_us = record.body_us - record.peer_wait_us
        head_us = record.end_us - record.start_us - record.body_us
        if record.bound == "peer":
            assert record.peer_wait_us > max(own_us, head_us) - GRID_SLACK_US
        elif record.bound == "cores":
            assert record.wait_us > max(own_us, head_us, record.peer_wait_us) - GRID_SLACK_US
        elif record.bound == "launch":
            assert head_us + op.gap_us >= own_us - GRID_SLACK_US
        else:
            assert needs[record.bound](op.demand) > 0.0
