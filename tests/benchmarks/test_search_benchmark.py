"""The search benchmark at small size: keys, and the same answer from any number of processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search.__main__ import BenchmarkConfig, main
from twin.cli import run

SMALL = [f"search.knobs.{name}.levels=[0,1]" for name in ("mla_1", "mla_0", "gate_up", "down")]
SMALL += ["search.knobs.ratio.levels=[1,3]", "search.knobs.router.levels=[1]"]


def test_one_process_and_two_give_the_same_answer(tmp_path: Path) -> None:
    assert run("benchmark_search", BenchmarkConfig, main, [*SMALL, f"output={tmp_path}"]) == 0
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found["same"] is True
    assert found["candidates"] == found["feasible"] == 2 * 2 * 16 * 25
    assert 0 < found["simulated"] <= found["feasible"]
    assert found["pruning_factor"] == pytest.approx(found["feasible"] / found["simulated"])
    assert [run["processes"] for run in found["runs"]] == [1, 2]
    assert found["runs"][0]["ratio"] == 1.0
    assert all(run["seconds"] > 0 for run in found["runs"])


@pytest.mark.parametrize("wrong", ["processes=[]", "processes=[0]"])
def test_wrong_processes_are_named(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, wrong, f"output={tmp_path}"]
    assert run("benchmark_search", BenchmarkConfig, main, arguments) == 2
    assert "processes" in capsys.readouterr().err
