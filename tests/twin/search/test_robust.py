"""Robustness: the same latencies as one by one, and an order that draws and skew decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardware_models.hardware import load_hardware
from twin.evaluate import latencies
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.config import Knob
from twin.search.pool import Processes
from twin.search.robust import SkewRun, TieRun, rank_ties
from twin.search.space import Space
from twin.search.structure import Structure, places_of
from twin.uncertainty import draw_hardware

MODEL, HARDWARE = load_model("longcat-flash-560b"), load_hardware("a3-752t")
DOWN = {"dense.0.down": "dense.0.all_gather", "dense.1.down": "dense.1.all_gather"}
SPACE = Space(
    load_schedule("recipe_afd"),
    MODEL,
    HARDWARE,
    {
        "down": Knob(drives="prefetch", levels=(0, 0.5, 1), weights=DOWN),
        "ratio": Knob(drives="ratio", levels=(1, 3)),
        "w2": Knob(
            drives="prefetch", role="ffn", levels=(0, 1), weights={"moe.w2": "moe.router_matmul"}
        ),
    },
    (),
)
VARIANTS = draw_hardware(HARDWARE, 3)


def test_places_of_a_candidate_lead_back_to_it() -> None:
    for index in range(SPACE.size):
        fixed, levels = places_of(SPACE, index)
        assert Structure(SPACE, fixed).index(levels) == index


def test_ties_of_two_structures_run_on_a_drawn_die_as_one_by_one() -> None:
    indices = (11, 0, 2, 6, 9)
    found = TieRun(SPACE, indices)(VARIANTS[1])
    alone = [latencies(SPACE.schedule(i), MODEL, [VARIANTS[1]])[0] for i in indices]
    assert found == pytest.approx(alone, rel=1e-9)


def test_the_order_is_that_of_the_slow_end_and_not_of_the_prediction() -> None:
    # The fastest is put first though it is none here: it stays among those listed.
    ties = [2, 0, 4, 8, 6]
    with Processes(1) as workers:
        ranked = rank_ties(SPACE, ties, VARIANTS, 3, workers)
    drawn = np.array([TieRun(SPACE, tuple(ties))(variant) for variant in VARIANTS])
    slow = np.quantile(drawn, 0.9, axis=0)
    first = list(np.argsort(slow)[:3])
    assert 0 not in first
    assert {each.index for each in ranked} == {ties[at] for at in [*first[:2], 0]}
    assert [each.p90_us for each in ranked] == sorted(each.p90_us for each in ranked)
    for each in ranked:
        factors = SkewRun(MODEL, HARDWARE)(SPACE.schedule(each.index))
        assert factors is not None
        assert each.skew is not None
        assert each.skew == pytest.approx(np.mean(factors) - 1)
        assert each.skew > 0
        pairs = [us * factor for us in drawn[:, ties.index(each.index)] for factor in factors]
        assert each.p90_us == pytest.approx(np.quantile(pairs, 0.9))


def test_skew_differs_by_seed_and_costs() -> None:
    factors = SkewRun(MODEL, HARDWARE)(SPACE.schedule(0))
    assert factors is not None
    assert factors[0] != factors[1]
    assert 1.0 < min(factors) <= max(factors) < 1.5


def test_prefill_is_ranked_by_the_draws_alone() -> None:
    schedule = load_schedule("recipe_prefill")
    knob = Knob(drives="chunk", levels=(1024, 8192))
    space = replace(SPACE, base=schedule, knobs={"chunk": knob})
    with Processes(1) as workers:
        ranked = rank_ties(space, [0, 1], VARIANTS[:2], 2, workers)
    assert [each.skew for each in ranked] == [None, None]
    assert sorted(each.index for each in ranked) == [0, 1]
