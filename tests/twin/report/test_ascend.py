"""Exported profiles: the command's option, and MindStudio's own tool reads them."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from twin.cli import run
from twin.simulate import SimulateConfig, main

TOOL = Path(sys.executable).with_name("msprof-analyze")


def export(folder: Path, schedule: str, to: Path) -> int:
    arguments = [f"schedule={schedule}", "draws=0", f"output={folder}", f"export={to}"]
    return run("simulate", SimulateConfig, main, arguments)


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("profiles")
    for schedule in ("recipe_afd", "recipe_colocated"):
        assert export(root / f"run_{schedule}", schedule, root / schedule) == 0
    return root


def msprof_analyze(*arguments: object) -> str:
    done = subprocess.run(
        [str(TOOL), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "400"},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "[ERROR]" not in said
    assert "Traceback" not in said
    return said


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_msprof_analyze_finds_every_die_and_its_times(profiles: Path, tmp_path: Path) -> None:
    msprof_analyze("cluster", "-d", profiles / "recipe_afd", "-m", "all", "-o", tmp_path)
    answer = tmp_path / "cluster_analysis_output"
    found = rows_of(answer / "cluster_step_trace_time.csv")
    assert [row["Index"] for row in found] == ["0", "1"]
    for row in found:
        folder = profiles / "recipe_afd" / f"die{row['Index']}_simulated_ascend_pt"
        (ours,) = rows_of(folder / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv")
        for part in ("Computing", "Communication(Not Overlapped)", "Communication", "Free"):
            assert float(row[part]) == pytest.approx(float(ours[part]), rel=1e-9)
    assert (answer / "cluster_communication.json").stat().st_size > 1000


def test_msprof_analyze_compares_two_simulations(profiles: Path, tmp_path: Path) -> None:
    one, two = (
        profiles / name / "die0_simulated_ascend_pt" for name in ("recipe_colocated", "recipe_afd")
    )
    said = msprof_analyze("compare", "-d", one, "-bp", two, "-o", tmp_path)
    assert list(tmp_path.glob("performance_comparison_result_*.xlsx"))
    for folder in (one, two):
        (ours,) = rows_of(folder / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv")
        assert f"{float(ours['Computing']) / 1e6:.3f}s" in said
        assert f"{float(ours['Stage']) / 1e6:.3f}s" in said


def test_the_same_inputs_export_the_same_bytes(profiles: Path, tmp_path: Path) -> None:
    assert export(tmp_path / "run", "recipe_afd", tmp_path / "again") == 0
    first = profiles / "recipe_afd"
    files = sorted(path.relative_to(first) for path in first.glob("**/*") if path.is_file())
    assert len(files) == 18
    for path in files:
        assert (first / path).read_bytes() == (tmp_path / "again" / path).read_bytes()


@pytest.mark.parametrize("kind", ["full", "file", "empty", "nul"])
def test_a_place_that_is_taken_is_refused_before_anything_runs(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    to = "" if kind == "empty" else str(tmp_path / kind) + ("\x00" if kind == "nul" else "")
    arguments = ["schedule=tiny_colocated", f"output={tmp_path / 'run'}", f'export="{to}"']
    assert run("simulate", SimulateConfig, main, arguments) == 2
    assert "export" in capsys.readouterr().err
    assert not (tmp_path / "run" / "result.json").exists()
