"""What cannot run is refused, or found out, by name; nothing hangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_graphs import Builder, make_hardware

from hardware_models.demand import WeightRead
from hardware_models.errors import DeadlockError, InputError
from twin.engine.reference import simulate

BAD = [float("nan"), float("inf"), -1.0, -1e-300, 1e16]
AMOUNTS = [
    "head_us", "cube_us", "vector_us", "latency_us", "hbm_bytes", "hbm_cap_gbps", "l2_cap_gbps",
    "sdma_bytes", "link_bytes",
]  # fmt: skip


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("field", AMOUNTS)
def test_impossible_amounts_name_op_and_field(field: str, value: float) -> None:
    build = Builder()
    build.add("good", cube_us=1.0)
    build.add("layer.0.bad", **{field: value})
    with pytest.raises(InputError, match=f"layer.0.bad.demand.{field}") as caught:
        build.run()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(
    ("field", "demand"),
    [
        ("gap_us", lambda value: {"gap_us": value}),
        ("release_us", lambda value: {"release_us": value}),
        ("weights", lambda value: {"weights": (WeightRead("w", value),)}),
        ("fills", lambda value: {"fills": WeightRead("w", value)}),
    ],
)
def test_other_impossible_amounts(field: str, demand: Any, value: float) -> None:
    build = Builder()
    build.add("bad", **demand(value))
    with pytest.raises(InputError, match=f"bad.*{field}"):
        build.run()


@pytest.mark.parametrize("cap", [1e-300, 1e-7])
def test_cap_that_no_core_can_have(cap: float) -> None:
    build = Builder()
    build.add("bad", hbm_bytes=1.0, hbm_cap_gbps=cap)
    with pytest.raises(InputError, match="hbm_cap_gbps"):
        build.run()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hbm_read_gbps", 1e-9),
        ("l2_gbps", 1e16),
        ("sdma_gbps", 1e-300),
        ("link_gbps", 1e300),
        ("l2_usable_bytes", 1e16),
        ("l2_pollution", 1.5),
    ],
)
def test_hardware_out_of_range(name: str, value: float) -> None:
    build = Builder(make_hardware(**{name: value}))
    build.add("op", cube_us=1.0)
    with pytest.raises(InputError, match=name):
        build.run()


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("peer", {"peer": 2}),
        ("peer", {"peer": -1}),
        ("die", {"die": 7}),
        ("deps", {"deps": (5,)}),
        ("deps", {"deps": (-1,)}),
        ("cores", {"cores": (-1, 0)}),
    ],
)
def test_references_to_nothing(field: str, place: dict[str, Any]) -> None:
    build = Builder(dies=2)
    build.add("bad", **place)
    with pytest.raises(InputError, match=f"bad.{field}"):
        build.run()


def test_index_that_is_not_the_place() -> None:
    build = Builder()
    build.add("op", cube_us=1.0)
    graph = build.graph()
    with pytest.raises(InputError, match="op.index"):
        simulate(replace(graph, ops=(replace(graph.ops[0], index=1),)))


def test_die_index_given_twice() -> None:
    graph = Builder().graph()
    with pytest.raises(InputError, match="dies"):
        simulate(replace(graph, dies=graph.dies * 2))


@pytest.mark.parametrize("cores", [(9, 0), (0, 17)])
def test_more_cores_than_the_die_has(cores: tuple[int, int]) -> None:
    build = Builder()
    build.add("wide", cores=cores, cube_us=1.0)
    with pytest.raises(DeadlockError, match="wide.*8 \\+ 16"):
        build.run()


def test_cycle_of_deps() -> None:
    build = Builder()
    build.add("fine", stream="x", cube_us=1.0)
    build.add("a", stream="y", deps=(2,), cube_us=1.0)
    build.add("b", stream="z", deps=(1,), cube_us=1.0)
    build.add("behind", stream="z", cube_us=1.0)
    with pytest.raises(DeadlockError) as caught:
        build.run()
    message = str(caught.value)
    assert "a (die 0, y) waits for the end of b (die 0, z)" in message
    assert "b (die 0, z) waits for the end of a (die 0, y)" in message
    assert "fine" not in message
    assert "behind" not in message


def test_op_that_waits_for_itself_or_for_one_behind_it() -> None:
    for dep in (0, 1):
        build = Builder()
        build.add("first", deps=(dep,), cube_us=1.0)
        build.add("second", cube_us=1.0)
        with pytest.raises(DeadlockError, match="first .* waits for the end of"):
            build.run()


def test_rendezvous_in_opposite_order() -> None:
    build = Builder(dies=2)
    for die, order in enumerate(("xy", "yx")):
        for key in order:
            build.add(f"{key}{die}", die=die, rendezvous=key, latency_us=1.0)
    with pytest.raises(DeadlockError) as caught:
        build.run()
    assert "x0 (die 0, main) waits for x1 (die 1, main) to join rendezvous 'x'" in str(caught.value)
    assert "y1 (die 1, main) waits for y0 (die 0, main) to join rendezvous 'y'" in str(caught.value)


def test_two_members_on_one_stream() -> None:
    build = Builder()
    build.add("a", rendezvous="r")
    build.add("b", rendezvous="r")
    with pytest.raises(DeadlockError, match="a .* waits for b .* to join"):
        build.run()


def test_member_that_holds_the_cores_that_another_needs() -> None:
    build = Builder()
    build.add("a", cores=(8, 0), rendezvous="r", latency_us=1.0)
    build.add("front", stream="n", cores=(1, 0), cube_us=1.0)
    build.add("b", stream="z", cores=(1, 0), rendezvous="r", latency_us=1.0)
    with pytest.raises(DeadlockError) as caught:
        build.run()
    message = str(caught.value)
    assert "a (die 0, main) waits for b (die 0, z) to join rendezvous 'r'" in message
    assert (
        "b (die 0, z) waits for 1 aic + 0 aiv cores held by a (die 0, main), "
        "behind front (die 0, n)" in message
    )


def test_long_lists_of_waiting_ops_are_cut() -> None:
    build = Builder()
    for n in range(40):
        build.add(f"op{n}", stream=f"s{n}", deps=tuple(range(40)), cube_us=1.0)
    with pytest.raises(DeadlockError) as caught:
        build.run()
    message = str(caught.value)
    assert "op0 (die 0, s0)" in message
    assert "and 28 more streams wait" in message
    assert len(message) < 6000


def test_extreme_but_finite_amounts_end() -> None:
    build = Builder()
    build.add("huge", gap_us=1e15, head_us=1e15, hbm_bytes=1e15, hbm_cap_gbps=1e-6)
    build.add("other", stream="moe", release_us=1e15, hbm_bytes=1e15)
    build.add("tiny", cube_us=5e-324, hbm_bytes=5e-324, sdma_bytes=1e15)
    run = build.run()
    assert run["tiny"].end_us > run["huge"].end_us > 1e15
