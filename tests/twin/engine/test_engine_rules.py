"""Hand-computed cases, one or more for each rule of the reference engine's docstring."""

from __future__ import annotations

import pytest
from engine_graphs import ALONE, KB, STOPS, Builder, make_hardware, us

from hardware_models.demand import WeightRead
from twin.engine.options import EngineOptions
from twin.engine.reference import simulate
from twin.graph.step_graph import StepGraph


def test_empty_graph() -> None:
    assert simulate(StepGraph(make_hardware(), (), ())).makespan_us == 0.0


# Rule 2: streams.


def test_ready_at_the_latest_of_gap_deps_and_release() -> None:
    build = Builder()
    first = build.add("first", gap_us=1.0, cube_us=3.0)
    build.add("gap", gap_us=2.0, cube_us=1.0)
    other = build.add("other", stream="moe", cube_us=9.0)
    build.add("dep", gap_us=1.0, deps=(first, other), cube_us=1.0)
    build.add("host", gap_us=1.0, release_us=20.0, cube_us=1.0)
    run = build.run()
    assert (run["first"].start_us, run["first"].end_us, run["first"].wait_us) == (1.0, 4.0, 1.0)
    assert (run["gap"].start_us, run["gap"].wait_us) == (6.0, 2.0)
    assert (run["dep"].start_us, run["dep"].wait_us) == (9.0, 2.0)
    assert (run["host"].start_us, run["host"].wait_us) == (20.0, 10.0)


def test_dep_given_twice_counts_once() -> None:
    build = Builder()
    first = build.add("first", cube_us=3.0)
    build.add("second", stream="moe", deps=(first, first), cube_us=1.0)
    assert build.run()["second"].start_us == 3.0


def test_streams_of_a_die_run_beside_each_other() -> None:
    build = Builder()
    build.add("a", cores=(4, 4), cube_us=5.0)
    build.add("b", stream="moe", cores=(4, 12), cube_us=5.0)
    assert build.run()["b"].end_us == 5.0


# Rule 3: cores.


def test_cores_are_granted_all_or_nothing() -> None:
    build = Builder()
    build.add("a", cores=(5, 0), cube_us=5.0)
    build.add("b", stream="moe", cores=(4, 0), cube_us=1.0)
    run = build.run()
    assert (run["b"].start_us, run["b"].wait_us) == (5.0, 5.0)


def test_the_front_of_the_queue_blocks_those_behind_it() -> None:
    build = Builder()
    build.add("holder", stream="a", cores=(5, 0), cube_us=10.0)
    build.add("wide", stream="b", cores=(8, 0), release_us=1.0, cube_us=1.0)
    build.add("narrow", stream="c", cores=(1, 0), release_us=2.0, cube_us=1.0)
    build.add("vector", stream="d", cores=(0, 1), release_us=2.0, cube_us=1.0)
    build.add("coreless", stream="e", release_us=2.0, cube_us=1.0)
    run = build.run()
    assert run["wide"].start_us == 10.0
    assert run["narrow"].start_us == 11.0
    assert run["vector"].start_us == 11.0, "narrow, now the front, blocks it in its turn"
    assert run["coreless"].start_us == 2.0


def test_requests_of_one_instant_are_served_by_stream_name() -> None:
    build = Builder()
    build.add("late name", stream="z", cores=(8, 0), cube_us=1.0)
    build.add("early name", stream="a", cores=(8, 0), cube_us=1.0)
    run = build.run()
    assert (run["early name"].start_us, run["late name"].start_us) == (0.0, 1.0)


def test_ready_time_goes_before_stream_name() -> None:
    build = Builder()
    build.add("holder", stream="m", cores=(8, 0), cube_us=5.0)
    build.add("second", stream="a", cores=(8, 0), release_us=2.0, cube_us=1.0)
    build.add("first", stream="z", cores=(8, 0), release_us=1.0, cube_us=1.0)
    run = build.run()
    assert (run["first"].start_us, run["second"].start_us) == (5.0, 6.0)


def test_deps_count_for_the_ready_time() -> None:
    build = Builder()
    build.add("holder", stream="m", cores=(8, 0), cube_us=9.0)
    other = build.add("other", stream="n", cube_us=5.0)
    build.add("second", stream="a", cores=(8, 0), deps=(other,), cube_us=1.0)
    build.add("first", stream="z", cores=(8, 0), release_us=3.0, cube_us=1.0)
    run = build.run()
    assert (run["first"].start_us, run["second"].start_us) == (9.0, 10.0)


def test_pools_of_dies_are_separate() -> None:
    build = Builder(dies=2)
    build.add("a", die=0, cores=(8, 16), cube_us=5.0)
    build.add("b", die=1, cores=(8, 16), cube_us=5.0)
    assert build.run()["b"].start_us == 0.0


# Rule 4: heads and collectives.


def test_head_holds_the_cores_and_loads_nothing() -> None:
    build = Builder()
    build.add("a", cores=(8, 0), head_us=4.0, hbm_bytes=10 * KB)
    build.add("b", stream="moe", hbm_bytes=40 * KB)
    build.add("c", stream="z", cores=(1, 0), cube_us=1.0)
    run = build.run()
    assert run["b"].end_us == us(4.0), "as if alone"
    assert (run["a"].end_us, run["c"].start_us) == (us(5.0), us(5.0))


def test_collective_bodies_start_with_the_last_head_and_end_together() -> None:
    build = Builder(dies=2)
    build.add("a", die=0, head_us=1.0, latency_us=2.0, rendezvous="r")
    build.add("before", die=1, cube_us=6.0)
    build.add("b", die=1, head_us=2.0, latency_us=7.0, rendezvous="r")
    build.add("after", die=0, cube_us=1.0)
    run = build.run()
    assert (run["a"].start_us, run["a"].end_us) == (0.0, 15.0)
    assert (run["b"].start_us, run["b"].end_us) == (6.0, 15.0)
    assert run["a"].peer_wait_us == 7.0 + 5.0
    assert run["a"].body_us == 14.0
    assert (run["b"].peer_wait_us, run["b"].body_us) == (0.0, 7.0)
    assert (run["a"].bound, run["b"].bound) == ("peer", "latency")
    assert run["after"].start_us == 15.0


def test_collective_holds_its_cores_while_it_waits() -> None:
    build = Builder(dies=2)
    build.add("a", die=0, cores=(0, 16), latency_us=1.0, rendezvous="r")
    build.add("b", die=1, release_us=5.0, latency_us=3.0, rendezvous="r")
    build.add("vector", die=0, stream="moe", cores=(0, 1), release_us=1.0, vector_us=1.0)
    assert build.run()["vector"].start_us == 8.0


def test_member_that_waits_for_the_end_loads_nothing() -> None:
    build = Builder(dies=2)
    build.add("a", die=0, hbm_bytes=10 * KB, rendezvous="r")
    build.add("b", die=1, latency_us=30.0, rendezvous="r")
    build.add("reader", die=0, stream="moe", hbm_bytes=20 * KB)
    run = build.run()
    assert run["reader"].end_us == us(3.0), "2 us at half rate, 1 us at full rate"
    assert run["a"].end_us == us(30.0)


def test_collective_within_one_die_and_alone() -> None:
    build = Builder()
    build.add("a", cube_us=1.0, rendezvous="r")
    build.add("b", stream="moe", cube_us=4.0, rendezvous="r")
    build.add("alone", cube_us=1.0, rendezvous="other")
    run = build.run()
    assert (run["a"].end_us, run["alone"].end_us) == (4.0, 5.0)


# Rule 5: bodies.


@pytest.mark.parametrize(
    ("demand", "body_us", "bound"),
    [
        ({"cube_us": 4.0, "vector_us": 3.0, "latency_us": 2.0}, 4.0, "cube"),
        ({"cube_us": 2.0, "vector_us": 3.0, "latency_us": 2.0}, 3.0, "vector"),
        ({"cube_us": 2.0, "vector_us": 3.0, "latency_us": 5.0}, 5.0, "latency"),
        ({"cube_us": 2.0, "hbm_bytes": 30 * KB}, 3.0, "hbm_die"),
        ({"cube_us": 2.0, "hbm_bytes": 30 * KB, "hbm_cap_gbps": 5.0}, 6.0, "hbm_core"),
        ({"cube_us": 7.0, "hbm_bytes": 30 * KB, "hbm_cap_gbps": 5.0}, 7.0, "cube"),
        ({"hbm_bytes": 10 * KB, "sdma_bytes": 10 * KB}, 2.0, "sdma"),
        ({"hbm_bytes": 10 * KB, "link_bytes": 6 * KB}, 3.0, "link"),
        ({"weights": (WeightRead("w", 20 * KB),), "hbm_bytes": 20 * KB}, 4.0, "hbm_die"),
        ({"head_us": 3.0, "cube_us": 3.0}, 3.0, "launch"),
        ({"head_us": 2.9, "cube_us": 3.0}, 3.0, "cube"),
    ],
)
def test_body_alone(demand: dict[str, object], body_us: float, bound: str) -> None:
    build = Builder()
    build.add("op", **demand)
    for options in (EngineOptions(), ALONE):
        record = build.run(options)["op"]
        assert record.body_us == us(body_us)
        assert record.bound == bound


def test_slow_l2_binds_even_streaming_bytes() -> None:
    build = Builder(make_hardware(l2_gbps=4.0))
    build.add("op", hbm_bytes=40 * KB)
    record = build.run()["op"]
    assert (record.body_us, record.bound) == (us(10.0), "l2")


def test_nothing_to_do_takes_no_time() -> None:
    build = Builder()
    build.add("a")
    build.add("b", hbm_bytes=1e-7)
    build.add("c", cores=(1, 1), cube_us=1e-11)
    run = build.run()
    assert [record.end_us for record in run.values()] == [0.0, 0.0, 0.0]


def test_pipe_of_the_cores_adds_hbm_and_l2_time() -> None:
    build = Builder()
    fetched = build.prefetch("w", 20 * KB)
    build.add(
        "reader", deps=(fetched,), weights=(WeightRead("w", 32 * KB),),
        hbm_cap_gbps=6.0, l2_cap_gbps=10.0, cube_us=3.0,
    )  # fmt: skip
    run = build.run()
    assert run["reader"].resident_bytes == 20 * KB
    assert run["reader"].body_us == us(12 / 6 + 20 / 10)
    assert run["reader"].bound == "hbm_core"


# Rule 6: sharing.


def test_two_flows_share_hbm_half_and_half() -> None:
    build = Builder()
    build.add("a", hbm_bytes=10 * KB)
    build.add("b", stream="moe", hbm_bytes=30 * KB)
    run = build.run()
    assert run["a"].end_us == us(2.0)
    assert run["b"].end_us == us(4.0)
    free = build.run(ALONE)
    assert (free["a"].end_us, free["b"].end_us) == (us(1.0), us(3.0))


def test_the_uncapped_flow_gets_what_the_capped_one_leaves() -> None:
    build = Builder()
    build.add("a", hbm_bytes=20 * KB, hbm_cap_gbps=2.0)
    build.add("b", stream="moe", hbm_bytes=40 * KB)
    run = build.run()
    assert (run["a"].end_us, run["a"].bound) == (us(10.0), "hbm_core")
    assert (run["b"].end_us, run["b"].bound) == (us(5.0), "hbm_die")


def test_compute_bound_flow_takes_only_what_it_can_use() -> None:
    build = Builder()
    build.add("a", cube_us=10.0, hbm_bytes=20 * KB)
    build.add("b", stream="moe", hbm_bytes=40 * KB)
    run = build.run()
    assert (run["a"].end_us, run["a"].bound) == (us(10.0), "cube")
    assert run["b"].end_us == us(5.0)


def test_a_flow_held_by_sdma_leaves_hbm_to_the_other() -> None:
    build = Builder(make_hardware(sdma_gbps=3.0))
    build.prefetch("w", 30 * KB)
    build.add("b", hbm_bytes=70 * KB)
    run = build.run()
    assert (run["prefetch.w"].end_us, run["prefetch.w"].bound) == (us(10.0), "sdma")
    assert (run["b"].end_us, run["b"].bound) == (us(10.0), "hbm_die")


def test_levels_are_in_bytes_of_the_largest_load() -> None:
    """SDMA 5 is shared by a (weight 20) and b (weight 10, all SDMA): level 10/3 each.

    a moves 10 KB SDMA on 20 KB HBM, so it uses half a byte of SDMA per byte of level.
    """
    build = Builder()
    build.add("a", hbm_bytes=20 * KB, sdma_bytes=10 * KB)
    build.add("b", stream="moe", sdma_bytes=10 * KB)
    run = build.run()
    b_end = 10 / (10 / 3)
    a_done = b_end * (10 / 3) / 20
    assert run["b"].end_us == us(b_end)
    assert run["a"].end_us == us(b_end + (1 - a_done) * 2.0)


def test_later_flow_changes_the_rate_of_a_running_one() -> None:
    build = Builder()
    build.add("a", hbm_bytes=40 * KB)
    build.add("b", stream="moe", release_us=2.0, hbm_bytes=10 * KB)
    run = build.run()
    assert run["b"].end_us == us(4.0)
    assert run["a"].end_us == us(5.0)


def test_dies_share_nothing_but_links() -> None:
    build = Builder(dies=2)
    build.add("a", die=0, hbm_bytes=10 * KB)
    build.add("b", die=1, hbm_bytes=10 * KB)
    assert build.run()["a"].end_us == us(1.0)


def test_senders_share_the_link_into_one_die() -> None:
    build = Builder(dies=4)
    for die in range(3):
        build.add(f"send{die}", die=die, stream="link", peer=3, link_bytes=6 * KB)
    build.add("away", die=3, stream="link", peer=0, link_bytes=6 * KB)
    run = build.run()
    assert [run[f"send{die}"].end_us for die in range(3)] == [us(9.0)] * 3
    assert run["away"].end_us == us(3.0), "the other direction is free"
    assert run["send0"].bound == "link"


def test_two_flows_out_of_one_die_share_its_link_out() -> None:
    build = Builder(dies=3)
    build.add("left", die=0, stream="link", peer=1, link_bytes=2 * KB)
    build.add("right", die=0, stream="main", peer=2, link_bytes=2 * KB)
    assert build.run()["right"].end_us == us(2.0)


def test_three_dies_share_through_each_other() -> None:
    """Into die 2: two flows of level 1; die 0's other flow gets what its link out has left."""
    build = Builder(dies=3)
    build.add("a", die=0, stream="s1", peer=2, link_bytes=2 * KB)
    build.add("b", die=1, stream="s1", peer=2, link_bytes=2 * KB)
    build.add("c", die=1, stream="s2", peer=2, link_bytes=2 * KB)
    build.add("d", die=0, stream="s2", peer=1, link_bytes=8 * KB)
    run = build.run()
    assert run["a"].end_us == us(3.0), "a third of the link into die 2"
    assert run["d"].end_us == us(3.0 + (8 - 3 * (2 - 2 / 3)) / 2)


def test_collective_without_peer_loads_its_own_link_both_ways() -> None:
    build = Builder(dies=2)
    build.add("a", die=0, link_bytes=2 * KB, rendezvous="r")
    build.add("b", die=1, link_bytes=2 * KB, rendezvous="r")
    build.add("send", die=0, stream="link", peer=1, link_bytes=2 * KB)
    run = build.run()
    assert run["send"].end_us == us(2.0)
    assert run["a"].end_us == us(2.0)


# Rule 8: one instant.


def test_cores_freed_by_ops_without_work_are_granted_at_the_same_instant() -> None:
    build = Builder()
    for n in range(5):
        build.add(f"empty{n}", cores=(8, 16))
    build.add("last", stream="moe", cores=(8, 16), cube_us=1.0)
    assert build.run()["last"].start_us == 0.0


def test_an_op_that_ends_frees_cores_before_requests_of_that_instant() -> None:
    build = Builder()
    build.add("a", cores=(8, 0), cube_us=2.0)
    build.add("b", stream="moe", cores=(8, 0), release_us=2.0, cube_us=1.0)
    assert build.run()["b"].start_us == 2.0


def test_ends_of_an_instant_go_before_its_grants() -> None:
    """The op that an end makes ready takes part in the grants of that instant."""
    build = Builder()
    ends = build.add("ends", stream="m", cube_us=2.0)
    build.add("late name", stream="z", cores=(8, 0), release_us=2.0, cube_us=1.0)
    build.add("early name", stream="a", cores=(8, 0), deps=(ends,), cube_us=1.0)
    run = build.run()
    assert (run["early name"].start_us, run["late name"].start_us) == (2.0, 3.0)


def test_readers_of_one_instant_go_by_stream_name() -> None:
    build = Builder()
    fetched = build.prefetch("w", 10 * KB)
    for stream in ("z", "a"):
        build.add(stream, stream=stream, deps=(fetched,), weights=(WeightRead("w", 10 * KB),))
    run = build.run()
    assert (run["a"].resident_bytes, run["z"].resident_bytes) == (10 * KB, 0.0)


def test_prefetch_that_ends_when_its_reader_starts_has_arrived() -> None:
    build = Builder()
    build.prefetch("w", 10 * KB)
    build.add("reader", release_us=2.0, weights=(WeightRead("w", 10 * KB),))
    assert build.run(STOPS)["reader"].resident_bytes == 10 * KB
