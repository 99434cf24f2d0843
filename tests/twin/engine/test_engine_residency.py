"""The L2 of a die: that crediting late gives what crediting all the time gives."""

from __future__ import annotations

import pytest
from engine_graphs import make_hardware
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_models.demand import Demand, WeightRead
from twin.engine.fluid import Body, DieResources
from twin.engine.residency import Residency

DIE = DieResources(0, make_hardware())


def fill(l2: Residency, weight: str, bytes_: float, speed: float, now_us: float) -> Body:
    body = Body(now_us, (0, 0, 0), Demand(hbm_bytes=bytes_), 0.0, DIE, DIE)
    body.speed = speed
    l2.start_fill(body, WeightRead(weight, bytes_))
    return body


@settings(max_examples=200, deadline=None)
@given(
    capacity=st.sampled_from([0.0, 7.0, 20.0, 1e9]),
    speeds=st.lists(st.sampled_from([0.05, 0.1, 0.25]), min_size=1, max_size=4),
    pollution=st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 20.0)), max_size=3),
    looks=st.integers(1, 40),
)
def test_looking_often_changes_nothing(
    capacity: float, speeds: list[float], pollution: list[tuple[int, float]], looks: int
) -> None:
    def left(points: int) -> list[float]:
        l2 = Residency(capacity)
        for number, speed in enumerate(speeds):
            fill(l2, f"w{number}", 10.0, speed, now_us=float(number))
        events = [(float(time), amount) for time, amount in sorted(pollution)]
        events += [(10.0 * (n + 1) / points, 0.0) for n in range(points)]
        for time_us, amount in sorted(events):
            if time_us >= len(speeds):
                l2.pollute(amount, time_us) if amount else l2.read([], time_us)
        return [l2.read([WeightRead(f"w{n}", 10.0)], 10.0) for n in range(len(speeds))]

    assert left(looks) == pytest.approx(left(1), abs=1e-9)


def test_never_more_than_the_capacity() -> None:
    l2 = Residency(15.0)
    body = fill(l2, "w", 10.0, 0.1, 0.0)
    l2.pollute(3.0, 5.0)
    assert l2.held_bytes == 8.0
    l2.pollute(30.0, 6.0)
    assert l2.held_bytes == 15.0
    l2.end_fill(body, 10.0)
    assert l2.held_bytes == 15.0
    assert l2.read([WeightRead("w", 10.0)], 10.0) == 0.0, "older than what polluted"


@pytest.mark.parametrize("polluting", [29487.0 * 0.3, 0.1, 0.7, 1234.567, 8888.8])
def test_rounding_never_leaves_less_than_nothing(polluting: float) -> None:
    l2 = Residency(13000.0)
    l2.pollute(polluting, 0.0)
    l2.end_fill(fill(l2, "w", 14000.0, 0.1, 0.0), 9.99)
    l2.read([WeightRead("w", 0.0)], 10.0)
    assert l2.held_bytes == 0.0


def test_parts_of_a_weight_by_several_prefetches_add_up() -> None:
    l2 = Residency(100.0)
    l2.end_fill(fill(l2, "w", 10.0, 1.0, 0.0), 1.0)
    l2.end_fill(fill(l2, "w", 6.0, 0.5, 1.0), 2.0)
    assert l2.read([WeightRead("w", 50.0)], 3.0) == 13.0
    assert l2.held_bytes == 0.0
    assert l2.was_read("w")
    assert not l2.was_read("v")
