"""Sharing is weighted max-min fair: checked by its definition, not by another algorithm."""

from __future__ import annotations

from math import inf

import pytest
from engine_graphs import make_hardware
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_models.demand import Demand
from twin.engine.fluid import GRID_PER_US, Body, DieResources, Resource, connected, on_grid, share

DIES = 3
CLOSE = 1e-9


@st.composite
def running(draw: st.DrawFn) -> tuple[list[DieResources], list[Body]]:
    """Bodies of random demands on three dies, entered as users of what they load."""
    rate = st.sampled_from([0.5, 2.0, 3.0, 10.0, 40.0])
    hardware = make_hardware(
        hbm_read_gbps=draw(rate),
        l2_gbps=draw(rate),
        sdma_gbps=draw(rate),
        link_gbps=draw(rate),
    )
    dies = [DieResources(die, hardware) for die in range(DIES)]
    amount = st.one_of(st.just(0.0), st.integers(1, 5).map(float), st.floats(1.0, 1e6))
    bodies = []
    for index in range(draw(st.integers(1, 8))):
        demand = Demand(
            cube_us=draw(st.sampled_from([0.0, 0.0, 1.0, 50.0])),
            hbm_bytes=draw(amount),
            sdma_bytes=draw(amount),
            link_bytes=draw(amount),
            hbm_cap_gbps=draw(st.sampled_from([0.0, 1.0, 20.0])),
        )
        here = draw(st.integers(0, DIES - 1))
        there = draw(st.integers(0, DIES - 1))
        body = Body(0.0, (here, 0, index), demand, 0.0, dies[here], dies[there])
        if body.loads:
            for resource, _, _ in body.loads:
                resource.users[body] = None
            bodies.append(body)
    return dies, bodies


@settings(max_examples=300, deadline=None)
@given(running())
def test_max_min_fair(case: tuple[list[DieResources], list[Body]]) -> None:
    """No resource is over its rate; each body is at its cap or loads a full resource on which
    nobody has a higher level (which is what max-min fair means)."""
    _, bodies = case
    answers = dict(zip(bodies, share(bodies), strict=True)) if bodies else {}
    used: dict[Resource, float] = {}
    for body, (speed, _) in answers.items():
        assert 0.0 < speed <= body.cap * (1 + CLOSE)
        for resource, amount, _ in body.loads:
            used[resource] = used.get(resource, 0.0) + amount * speed
    for resource, total in used.items():
        assert total <= resource.rate * (1 + CLOSE)
    for body, (speed, bound) in answers.items():
        if bound == body.cap_bound and speed == pytest.approx(body.cap, rel=CLOSE):
            continue
        level = speed * body.weight
        assert any(
            resource.bound == bound
            and used[resource] >= resource.rate * (1 - CLOSE)
            and all(
                answers[user][0] * user.weight <= level * (1 + CLOSE) for user in resource.users
            )
            for resource, _, _ in body.loads
        )


@settings(max_examples=150, deadline=None)
@given(running())
def test_groups_can_be_shared_one_by_one(case: tuple[list[DieResources], list[Body]]) -> None:
    """Connected groups are disjoint, complete, and get the rates that all together get."""
    dies, bodies = case
    resources = [r for d in dies for r in (d.hbm, d.l2, d.sdma, d.link_out, d.link_in)]
    groups = connected(resources)
    assert sorted(b.index for group in groups for b in group) == [b.index for b in bodies]
    together = dict(zip(bodies, share(bodies), strict=True)) if bodies else {}
    for group in groups:
        for body, (speed, _) in zip(group, share(group), strict=True):
            assert speed == pytest.approx(together[body][0], rel=CLOSE)


def test_connected_reaches_over_dies_but_not_over_idle_resources() -> None:
    dies = [DieResources(die, make_hardware()) for die in range(3)]
    send = Body(0.0, (0, 0, 0), Demand(link_bytes=1.0), 0.0, dies[0], dies[1])
    relay = Body(0.0, (1, 0, 1), Demand(link_bytes=1.0, hbm_bytes=1.0), 0.0, dies[2], dies[1])
    reader = Body(0.0, (2, 0, 2), Demand(hbm_bytes=1.0), 0.0, dies[2], dies[2])
    apart = Body(0.0, (0, 0, 3), Demand(hbm_bytes=1.0), 0.0, dies[0], dies[0])
    for body in (reader, apart, relay, send):
        for resource, _, _ in body.loads:
            resource.users[body] = None
    assert connected([dies[0].link_out]) == [[send, relay, reader]]
    assert connected([dies[0].hbm, dies[2].l2]) == [[apart], [send, relay, reader]]
    assert connected([dies[1].hbm]) == []


def test_several_resources_freeze_one_after_the_other() -> None:
    """SDMA 3 holds a and b at level 1.5; HBM 10 leaves 7 to c and d; d's cap is 2, c gets 5."""
    die = DieResources(0, make_hardware(sdma_gbps=3.0))
    both = {"hbm_bytes": 1000.0, "sdma_bytes": 1000.0}
    demands = [
        Demand(**both),
        Demand(**both),
        Demand(hbm_bytes=1000.0),
        Demand(hbm_bytes=1000.0, hbm_cap_gbps=2.0),
    ]
    bodies = [Body(0.0, (0, 0, i), d, 0.0, die, die) for i, d in enumerate(demands)]
    answers = share(bodies)
    assert [speed for speed, _ in answers] == pytest.approx([1.5, 1.5, 5.0, 2.0])
    assert [bound for _, bound in answers] == ["sdma", "sdma", "hbm_die", "hbm_core"]


def test_equal_levels_name_the_cap_first_and_then_resources_in_order() -> None:
    die = DieResources(0, make_hardware(hbm_read_gbps=10.0, l2_gbps=10.0, sdma_gbps=10.0))
    load = {"hbm_bytes": 1000.0, "sdma_bytes": 1000.0}
    bodies = [
        Body(0.0, (0, 0, 0), Demand(vector_us=0.2, **load), 0.0, die, die),
        Body(0.0, (0, 0, 1), Demand(**load), 0.0, die, die),
    ]
    assert [bound for _, bound in share(bodies)] == ["vector", "hbm_die"]
    assert share(bodies[1:]) == [(10.0, "hbm_die")]


def test_own_cap_without_any_term_is_none() -> None:
    die = DieResources(0, make_hardware())
    body = Body(0.0, (0, 0, 0), Demand(hbm_bytes=10.0), 0.0, die, die)
    assert body.cap == inf
    assert body.alone_us == pytest.approx(0.001)


@given(st.floats(0.0, 1e6))
def test_grid(time_us: float) -> None:
    rounded = on_grid(time_us)
    assert abs(rounded - time_us) <= 0.5 / GRID_PER_US
    assert (rounded * GRID_PER_US).is_integer()
    assert on_grid(rounded) == rounded
