"""The engine benchmark: its result file, its comparison of answers, its errors; never its speed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cases import CASES, search_knobs
from benchmarks.engine import EngineConfig, Result, main
from benchmarks.measure import Measured, evaluate_many, run_case
from twin.cli import run

KEYS = {
    "name", "dies", "layers", "ops", "simpy_s", "compiled_s", "ratio", "schedules_per_s", "peak_mb",
}  # fmt: skip


def benchmark(folder: Path, *arguments: str) -> int:
    return run("benchmark_engine", EngineConfig, main, [*arguments, f"output={folder}"])


def test_every_engine_gives_the_same_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("cases=[afd_3to1]", "clusters=[cluster_16,cluster_32]", "layers=2", "repeats=1")
    assert benchmark(tmp_path, *small, "candidates=30") == 0
    result = json.loads((tmp_path / "result.json").read_text())
    case, cluster, larger = result["cases"]
    assert all(set(other) == set(case) for other in (cluster, larger))
    assert (cluster["dies"], cluster["same"], cluster["plain_s"]) == (16, True, None)
    assert (larger["dies"], larger["same"], larger["simpy_s"]) == (32, None, None)
    assert larger["ms_per_die"] == pytest.approx(larger["compiled_s"] * 1e3 / 32)
    assert set(case) >= KEYS
    assert (case["name"], case["dies"], case["layers"]) == ("afd_3to1", 4, 2)
    assert case["ops"] == len(CASES["afd_3to1"].graph(2).ops)
    assert case["same"] is True
    assert case["ratio"] == pytest.approx(case["simpy_s"] / case["compiled_s"])
    assert case["plain_ratio"] == pytest.approx(case["plain_s"] / case["compiled_s"])
    assert case["events_per_s"] * case["compiled_s"] > case["ops"]
    assert result["steady"]["candidates"] == 30
    assert result["steady"]["largest_difference"] < 1e-9
    assert (tmp_path / "timing.json").is_file()
    printed = capsys.readouterr().out
    assert "from 3 engines, to the last bit" in printed
    assert "schedules/s" in printed


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("cases=[nothing]", "colocated, afd_1to1"),
        ("clusters=[nothing]", "cluster_16, cluster_32"),
        ("repeats=0", "repeats"),
        ("candidates=-1", "candidates"),
        ("layers=0", "layers"),
        ("layers=many", "layers"),
    ],
)
def test_wrong_input(
    argument: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(tmp_path, argument) == 2
    assert named in capsys.readouterr().err


def test_answers_that_differ_are_told_apart() -> None:
    one = run_case("colocated", 1, "compiled", 1)
    other = run_case("colocated", 1, "simpy", 1)
    assert one.answer == other.answer
    assert one.makespan_us == other.makespan_us
    assert Result("case", 1, one, other, None).same is True
    assert Result("case", 1, one, replace(other, answer=other.answer[::-1]), None).same is False
    assert Result("case", 1, one, None, None).same is None
    longer = run_case("colocated", 2, "simpy", 1)
    assert isinstance(longer, Measured)
    assert longer.answer != one.answer


def test_candidates_are_distinct_schedules() -> None:
    knobs = search_knobs(CASES["colocated"].load())
    for levels in knobs.values():
        assert len({repr(schedule) for schedule in levels}) == len(levels)
    evaluated = evaluate_many("colocated", 12, 1, 5)
    assert evaluated.candidates == 12
    assert evaluated.largest_difference < 1e-9
