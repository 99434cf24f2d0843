"""The winner of a shipped space against schedules drawn from between its levels."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from hardware_models.hardware import load_hardware
from twin.cli import run
from twin.evaluate import latencies
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.__main__ import main
from twin.search.changes import with_core_split, with_ratio, with_vector_split
from twin.search.config import SearchConfig
from twin.search.feasible import rejection

DRAWS = 150
HARDWARE = load_hardware("a3-752t")


def drawn(best: Schedule, draw: random.Random) -> Schedule:
    """A schedule near ``best`` or far from it: any bytes, cores and ratio, not only levels."""
    prefetch = tuple(
        replace(p, bytes=max(1, round(p.bytes * draw.uniform(0.1, 1.6))))
        for p in best.prefetch
        if draw.random() < 0.9
    )
    other = replace(best, prefetch=prefetch)
    if best.deployment.is_afd:
        return with_ratio(other, draw.choice([1, 1, 1, 3, 7, 15]))
    stage = best.stages[-1].name
    other = with_core_split(other, stage, draw.randint(8, 23), HARDWARE)
    return with_vector_split(other, stage, draw.randint(16, 44), HARDWARE)


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", ["colocated", "afd"])
def test_no_schedule_between_the_levels_beats_the_winner_by_more_than_its_interval(
    scenario: str, tmp_path: Path
) -> None:
    assert run("search", SearchConfig, main, [f"scenario={scenario}", f"output={tmp_path}"]) == 0
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found["proven_optimal"] is True
    assert found["feasible"] >= 200_000
    best = load_schedule(str(tmp_path / "schedule.yaml"))
    model, draw = load_model(best.model), random.Random(7)
    seen = 0
    for _ in range(DRAWS):
        other = drawn(best, draw)
        if rejection(other, model, HARDWARE) is None:
            seen += 1
            (us,) = latencies(other, model, [HARDWARE])
            assert us / 1e3 >= found["best"]["interval"][0]
    assert seen > DRAWS / 4
