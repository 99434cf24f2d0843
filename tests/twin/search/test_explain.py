"""Explanations: worths, bounds, deciders and upsets against plain evaluations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_models.hardware import load_hardware
from twin.evaluate import WAIT, evaluate, latencies
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.config import Knob
from twin.search.explain import Explanation, challengers, explain, worth
from twin.search.pool import Processes
from twin.search.space import Space
from twin.search.sweep import Point

MODEL, HARDWARE = load_model("longcat-flash-560b"), load_hardware("a3-752t")
DOWN = {"dense.0.down": "dense.0.all_gather", "dense.1.down": "dense.1.all_gather"}
SPACE = Space(
    load_schedule("recipe_afd"),
    MODEL,
    HARDWARE,
    {
        "ratio": Knob(drives="ratio", levels=(1, 3)),
        "down": Knob(drives="prefetch", levels=(0, 0.5, 1), weights=DOWN),
    },
    (),
)
TPOT_US = [latencies(SPACE.schedule(i), MODEL, [HARDWARE])[0] for i in range(SPACE.size)]
RANKED = sorted(range(SPACE.size), key=lambda i: TPOT_US[i])
POINTS = [Point(i, us, 1.0) for i, us in enumerate(TPOT_US)]


@pytest.fixture(scope="module")
def found() -> Explanation:
    best = evaluate(SPACE.schedule(RANKED[0]), MODEL, HARDWARE)
    with Processes(1) as workers:
        return explain(SPACE, best, RANKED[:2], POINTS, 0.0, workers)


def test_a_knob_is_worth_what_taking_it_back_costs() -> None:
    # The base has ratio 1 and prefetches down.
    alike = {tuple(SPACE.choice(i).values()): i for i in range(SPACE.size)}
    none_1, none_3 = alike[1, 0], alike[3, 0]
    costs = {each.knob: each.costs_us for each in worth(SPACE, none_3, TPOT_US[none_3])}
    assert costs["ratio"] == pytest.approx(TPOT_US[none_1] - TPOT_US[none_3])
    schedule = SPACE.schedule(none_1)
    taken = tuple(p for p in SPACE.base.prefetch if p.weight in DOWN)
    assert len(taken) == len(DOWN)
    (base_us,) = latencies(replace(schedule, prefetch=schedule.prefetch + taken), MODEL, [HARDWARE])
    costs = {each.knob: each.costs_us for each in worth(SPACE, none_1, TPOT_US[none_1])}
    assert costs["down"] == pytest.approx(base_us - TPOT_US[none_1])
    assert costs["down"] != 0.0
    assert costs["ratio"] == pytest.approx(0.0)


def test_what_cannot_be_taken_back_says_why() -> None:
    # 96 dies split 2:1, the 128 of the base do not.
    space = replace(SPACE, dies=(128, 96), knobs={"ratio": Knob(drives="ratio", levels=(2,))})
    index = next(i for i in range(space.size) if space.choice(i)["dies"] == 96)
    reasons = {each.knob: each for each in worth(space, index, 1.0)}
    assert reasons["dies"].costs_us is None
    assert "128 dies" in str(reasons["dies"].why)


def test_bounds_are_shares_of_the_main_stream_of_each_role(found: Explanation) -> None:
    assert set(found.bounds) == {"attention", "ffn"}
    for shares in found.bounds.values():
        assert sum(shares.values()) == pytest.approx(1.0)
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
    best = evaluate(SPACE.schedule(RANKED[0]), MODEL, HARDWARE)
    total_us = sum(best.time_by_kind.values())
    waits = found.bounds["attention"].get(WAIT, 0.0)
    assert waits == pytest.approx(best.time_by_kind[WAIT] / total_us)


def test_a_decider_moves_the_ties_apart_as_stated(found: Explanation) -> None:
    assert found.deciders
    moves = [each.moves_us for each in found.deciders]
    assert moves == sorted(moves, reverse=True)
    first = found.deciders[0]
    assert first.other == RANKED[1]
    assert first.kinds
    parameter = HARDWARE.parameter(first.parameter)
    pair = [SPACE.schedule(i) for i in RANKED[:2]]
    distance = TPOT_US[RANKED[1]] - TPOT_US[RANKED[0]]
    moved = []
    for value in (parameter.low, parameter.high):
        die = HARDWARE.with_values({parameter.name: value})
        a, b = (latencies(schedule, MODEL, [die])[0] for schedule in pair)
        moved.append(b - a)
    assert max(abs(each - distance) for each in moved) == pytest.approx(first.moves_us)
    assert first.decides == (min(moved) < 0 < max(moved))


def test_an_upset_is_won_by_the_candidate_named() -> None:
    # A winner that is none: every parameter then has somebody faster at both ends.
    loser = RANKED[-1]
    best = evaluate(SPACE.schedule(loser), MODEL, HARDWARE)
    with Processes(1) as workers:
        upsets = explain(SPACE, best, [loser], POINTS, 0.05, workers).upsets
    assert upsets
    assert all(each.gain > 0.05 for each in upsets)
    first = upsets[0]
    die = HARDWARE.with_values({first.parameter: first.value})
    mine, theirs = (latencies(SPACE.schedule(i), MODEL, [die])[0] for i in (loser, first.winner))
    assert mine / theirs - 1 == pytest.approx(first.gain)


def test_challengers_differ_in_each_knob_and_are_the_fastest() -> None:
    winner = RANKED[0]
    for points in (POINTS, []):
        for index, knob in zip(challengers(SPACE, winner, points), SPACE.levels, strict=False):
            assert SPACE.choice(index)[knob] != SPACE.choice(winner)[knob]
    found = challengers(SPACE, winner, POINTS)
    for knob in SPACE.levels:
        other = [i for i in RANKED if SPACE.choice(i)[knob] != SPACE.choice(winner)[knob]]
        assert other[0] in found
