"""Rule 9: what a record says of an op, on hand-made graphs."""

from __future__ import annotations

import pytest
from engine_graphs import KB, Builder, by_name, make_hardware, us

from twin.engine import compiled
from twin.engine.reference import simulate
from twin.engine.timeline import OpRecord


def test_bound_is_what_held_longest() -> None:
    """Alone the op is bound by its cores (4); shared for most of its time by HBM."""
    build = Builder(make_hardware(hbm_read_gbps=6.0))
    build.add("op", hbm_bytes=40 * KB, hbm_cap_gbps=4.0)
    build.add("other", stream="moe", release_us=1.0, hbm_bytes=24 * KB)
    run = build.run()
    assert run["op"].bound == "hbm_die"
    assert run["other"].end_us == us(9.0)
    assert run["op"].end_us == us(9.0 + 12 / 4)


def test_head_longer_than_the_wait_for_peers() -> None:
    build = Builder(dies=2)
    build.add("a", die=0, head_us=5.0, latency_us=1.0, rendezvous="r")
    build.add("b", die=1, head_us=7.0, latency_us=1.0, rendezvous="r")
    assert build.run()["a"].bound == "launch"


def test_makespan_leaves_out_prefetches() -> None:
    build = Builder()
    build.add("op", cube_us=1.0)
    build.prefetch("w", 100 * KB)
    timeline = simulate(build.graph())
    assert timeline.records[1].end_us == us(20.0)
    assert timeline.makespan_us == 1.0


def both(build: Builder) -> dict[str, OpRecord]:
    """The records, the same from both engines."""
    graph = build.graph()
    found = build.run()
    assert by_name(graph, compiled.simulate(graph)) == found
    return found


@pytest.mark.parametrize(("held_us", "bound"), [(5.0, "cores"), (3.0, "cube")])
def test_bound_is_cores_where_waiting_for_them_took_longest(held_us: float, bound: str) -> None:
    build = Builder()
    build.add("holder", cores=(8, 0), cube_us=held_us)
    build.add("asker", stream="moe", cores=(1, 0), cube_us=4.0)
    found = both(build)
    assert found["asker"].wait_us == us(held_us)
    assert found["asker"].bound == bound


@pytest.mark.parametrize(("dep_us", "bound"), [(0.0, "launch"), (6.0, "cube")])
def test_only_a_gap_that_shows_counts_as_launch(dep_us: float, bound: str) -> None:
    """The gap of 3 us behind "first" is hidden where the dep ends later than it."""
    build = Builder()
    build.add("first", cube_us=1.0)
    dep = build.add("dep", stream="moe", cube_us=dep_us)
    build.add("op", deps=(dep,), gap_us=3.0, cube_us=2.0)
    assert both(build)["op"].bound == bound
