"""Runs measured on this machine: what their marks may be, and what a comparison makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profile_files import kernel, rank_folder

from calibration.compare import CompareConfig, main
from twin.cli import run
from twin.schedule_io import load_schedule, save_schedule

NOTED = {"kv_tokens": 128, "ep": 1, "step_us": 2e4, "all_steps_us": 2.1e4, "running_share": 1.0}


def measured(folder: Path, *marks: str) -> Path:
    """A run folder whose ranks have these marks."""
    for rank, mark in enumerate(marks):
        output = rank_folder(folder / "profile", rank, [kernel(0, 5)])
        (output / "measured.json").write_text(mark)
    save_schedule(load_schedule("cpu/mid"), folder / "profile" / "schedule.yaml")
    return folder


def compare(folder: Path, profiles: Path) -> int:
    arguments = (f"profiles={profiles}", "draws=0", f"output={folder}")
    return run("compare", CompareConfig, main, arguments)


@pytest.mark.parametrize(
    ("mark", "named"),
    [
        ("", "measured.json:1"),
        ("[]", "an object"),
        ('{"step_us": 1', "measured.json:1"),
        (json.dumps({**NOTED, "step_us": -1}), "step_us"),
        (json.dumps({**NOTED, "step_us": "fast"}), "step_us"),
        (json.dumps({**NOTED, "running_share": float("nan")}), "running_share"),
        (json.dumps({k: v for k, v in NOTED.items() if k != "all_steps_us"}), "all_steps_us"),
        (json.dumps({**NOTED, "all_steps_us": 1e300}), "all_steps_us"),
    ],
)
def test_a_broken_mark_is_refused_by_name(
    mark: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(tmp_path / "runs" / "a", mark)
    assert compare(tmp_path / "out", tmp_path / "runs") == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error


def test_a_rank_without_a_mark_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = measured(tmp_path / "runs" / "a", json.dumps(NOTED))
    rank_folder(folder / "profile", 1, [kernel(0, 5)])
    assert compare(tmp_path / "out", tmp_path / "runs") == 2
    assert "measured.json a rank" in capsys.readouterr().err


def test_a_run_that_had_to_share_the_machine_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(tmp_path / "runs" / "alone", json.dumps(NOTED))
    shared = json.dumps({**NOTED, "running_share": 0.6})
    measured(tmp_path / "runs" / "beside", json.dumps(NOTED), shared)
    assert compare(tmp_path / "out", tmp_path / "runs") == 0
    said = capsys.readouterr().out
    assert "1 of 2 runs did not have the machine for themselves" in said
    found: dict[str, Any] = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [row["running_share"] for row in found["rows"]] == [1.0, 0.6]
    for row in found["rows"]:
        assert row["error"] == pytest.approx(row["simulated_us"] / 2e4 - 1)
