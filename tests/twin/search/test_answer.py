"""Answers: ties, ranges and the Pareto front of given points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hardware_models.hardware import load_hardware
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.answer import answer
from twin.search.config import Knob
from twin.search.feasible import Rejection
from twin.search.space import Space
from twin.search.structure import Infeasible
from twin.search.sweep import Point, Sweep

LEVELS = tuple(range(1, 31))
SPACE = Space(
    load_schedule("recipe_afd"),
    load_model("longcat-flash-560b"),
    load_hardware("a3-752t"),
    {"ratio": Knob(drives="ratio", levels=LEVELS)},
    (),
)
POSITIVE = st.floats(1.0, 1e4)


@given(
    values=st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=30),
    tolerance=st.floats(0, 0.5),
)
def test_ties_are_exactly_those_within_the_tolerance(
    values: list[tuple[float, float]], tolerance: float
) -> None:
    points = [Point(i, tpot, rate) for i, (tpot, rate) in enumerate(values)]
    found = answer(SPACE, points, tolerance)
    best = min(tpot for tpot, _ in values)
    assert set(found.ties) == {
        i for i, (tpot, _) in enumerate(values) if tpot <= best * (1 + tolerance)
    }
    assert values[found.ties[0]][0] == best
    assert found.tie_ranges["ratio"] == sorted(LEVELS[i] for i in found.ties)


@given(values=st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=30))
def test_no_point_beats_the_front_in_both(values: list[tuple[float, float]]) -> None:
    points = [Point(i, tpot, rate) for i, (tpot, rate) in enumerate(values)]
    front = answer(SPACE, points, 0.0).pareto
    for tpot, rate in values:
        assert any(values[i][0] <= tpot and values[i][1] >= rate * (1 - 1e-8) for i in front)
    rates = [values[i][1] for i in front]
    assert rates == sorted(rates)


def test_rejections_are_counted_by_reason_and_the_nearest_is_found() -> None:
    far = Rejection("memory", "9 GiB too much", 0.14)
    near = Rejection("memory", "1 GiB too much", 0.02)
    rule = Rejection("ep", "ep 3", 1.0)
    swept = Sweep()
    swept.reject(Infeasible({"memory": 2}, far))
    swept.reject(Infeasible({"memory": 1}, near))
    swept.reject(Infeasible({"ep": 1}, rule))
    swept.reject(Infeasible({}, None))
    assert swept.infeasible == {"memory": 3, "ep": 1}
    assert swept.nearest == near
    assert answer(SPACE, swept.points, 0.0).ties == ()
