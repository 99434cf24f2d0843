"""The check without contention, against brute force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardware_models.hardware import load_hardware
from twin.evaluate import latencies
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.config import Knob
from twin.search.contention import ALONE, check_contention
from twin.search.explorer import Explorer
from twin.search.pool import Processes
from twin.search.shards import SHARDS
from twin.search.space import Space
from twin.search.sweep import sweep

MODEL, HARDWARE = load_model("longcat-flash-560b"), load_hardware("a3-752t")
DOWN = {"dense.0.down": "dense.0.all_gather", "dense.1.down": "dense.1.all_gather"}
SPACE = Space(
    load_schedule("recipe_colocated"),
    MODEL,
    HARDWARE,
    {
        "main_cores": Knob(drives="cores", stage="stage2", levels=(8, 12, 16)),
        "down": Knob(drives="prefetch", levels=(0, 0.5, 1), weights=DOWN),
    },
    (),
)


@pytest.mark.parametrize("tolerance", [0.0, 0.005, 1.0])
@pytest.mark.parametrize("winner", range(SPACE.size))
def test_the_optimum_alone_is_that_of_brute_force(
    winner: int, tolerance: float, tmp_path: Path
) -> None:
    alone = [latencies(SPACE.schedule(i), MODEL, [HARDWARE], ALONE)[0] for i in range(SPACE.size)]
    with Processes(1) as workers:
        found = check_contention(SPACE, winner, tolerance, workers, tmp_path, 10**6)
    best = min(alone)
    assert found.proven
    assert found.alone_us == pytest.approx(best, rel=1e-9)
    assert found.winner_alone_us == pytest.approx(alone[winner], rel=1e-9)
    chosen = next(i for i in range(SPACE.size) if SPACE.choice(i) == found.choice)
    assert alone[chosen] == pytest.approx(best, rel=1e-9)
    contended = latencies(SPACE.schedule(chosen), MODEL, [HARDWARE])[0]
    assert found.contended_us == pytest.approx(contended, rel=1e-9)
    assert found.contended_us >= found.alone_us
    (winner_us,) = latencies(SPACE.schedule(winner), MODEL, [HARDWARE])
    assert found.changes == (contended > winner_us * (1 + tolerance))


def test_a_winner_that_is_as_fast_alone_is_no_change(tmp_path: Path) -> None:
    # Two names of one schedule: the second is as fast as the first, and stays.
    knob = Knob(drives="super_kernel", levels=(0, 1))
    base = replace(SPACE.base, super_kernel=())
    twice = replace(SPACE, base=base, knobs={"super_kernel": knob})
    with Processes(1) as workers:
        found = check_contention(twice, 1, 0.0, workers, tmp_path, 10**6)
    assert not found.changes
    assert found.choice == {"super_kernel": 1}


def test_both_sweeps_share_a_run_folder_and_keep_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Processes(1) as workers:
        plain = sweep(Explorer(SPACE, 0.0), workers, tmp_path, 10**6)
        assert "without contention" not in capsys.readouterr().err
        check_contention(SPACE, plain.points[0].index, 0.0, workers, tmp_path, 10**6)
        assert "searching without contention" in capsys.readouterr().err
        before = {path: path.read_bytes() for path in (tmp_path / SHARDS).iterdir()}
        again = sweep(Explorer(SPACE, 0.0), workers, tmp_path, 10**6)
        check_contention(SPACE, plain.points[0].index, 0.0, workers, tmp_path, 10**6)
    assert again.points == plain.points
    assert {path: path.read_bytes() for path in (tmp_path / SHARDS).iterdir()} == before
