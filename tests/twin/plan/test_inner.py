"""The fastest of a space against every schedule of it, one by one."""

from __future__ import annotations

import math
from functools import cache

import pytest

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.evaluate import latencies
from twin.models import load_model
from twin.plan.inner import Best, fastest, is_within, nearest
from twin.schedule_io import load_schedule
from twin.search.changes import with_batch
from twin.search.config import Knob
from twin.search.feasible import Rejection, rejection
from twin.search.space import Space
from twin.search.structure import Structure, structural_places

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")
MLA = Knob(
    drives="prefetch",
    levels=(0, 0.5, 1),
    weights={"attention.1.q_b": "dense.0.gate_up", "next.attention.0.q_b": "dense.1.down"},
)
KNOBS = {
    "recipe_colocated": {
        "cores": Knob(drives="cores", stage="stage2", levels=(8, 16)),
        "vectors": Knob(drives="vector_cores", stage="stage2", levels=(8, 16, 32)),
        "mla": MLA,
    },
    "recipe_afd": {
        "ratio": Knob(drives="ratio", levels=(1, 2, 3)),
        "parts": Knob(drives="micro_batches", levels=(1, 2)),
        "mla": MLA,
    },
}


def space_of(name: str, batch: int, dies: int = 128) -> Space:
    return Space(with_batch(load_schedule(name), batch), MODEL, HARDWARE, KNOBS[name], (dies,))


@cache
def every(name: str, batch: int) -> dict[int, float]:
    """The latency of every schedule that can run, by index."""
    space, found = space_of(name, batch), {}
    for index in range(space.size):
        try:
            schedule = space.schedule(index)
        except InputError:
            continue
        if rejection(schedule, MODEL, HARDWARE) is None:
            (found[index],) = latencies(schedule, MODEL, [HARDWARE])
    return found


CASES = [(name, batch) for name in KNOBS for batch in (128, 1000)]


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_the_fastest_is_that_of_brute_force(name: str, batch: int) -> None:
    space, latency = space_of(name, batch), every(name, batch)
    found = fastest(space)
    assert isinstance(found, Best)
    assert found.latency_us == pytest.approx(min(latency.values()), rel=1e-9)
    assert found.schedule == space.schedule(
        next(i for i in range(space.size) if space.choice(i) == found.choice)
    )


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_a_limit_can_be_kept_exactly_from_the_fastest_on(name: str, batch: int) -> None:
    space, latency = space_of(name, batch), every(name, batch)
    for fixed in structural_places(space):
        structure = Structure(space, fixed)
        own = [
            us
            for index, us in latency.items()
            if all(
                space.levels[knob].index(space.choice(index)[knob]) == at
                for knob, at in fixed.items()
            )
        ]
        assert structure.is_feasible is bool(own)
        if own:
            assert is_within(structure, min(own) * (1 + 1e-6))
            assert not is_within(structure, min(own) * (1 - 1e-6))


def test_where_nothing_runs_the_nearest_miss_is_named() -> None:
    found = fastest(space_of("recipe_colocated", 16 * 60, dies=16))
    assert isinstance(found, Rejection)
    assert "GiB too much" in found.detail
    assert 0 < found.excess < 0.2
    far = Rejection("memory", "9 GiB too much", 0.14)
    near = Rejection("memory", "1 GiB too much", 0.02)
    assert nearest([far, near, Rejection("ep", "ep 3", math.inf)]) == near
