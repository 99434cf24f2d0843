"""The cluster command: keys, bytes, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clusters import colocated

from twin.cli import run
from twin.cluster.__main__ import ClusterConfig, main
from twin.schedule_io import save_schedule


def cluster(folder: Path, *arguments: str) -> int:
    return run("cluster", ClusterConfig, main, [*arguments, f"output={folder}"])


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


def test_an_afd_cluster_with_skew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("schedule=recipe_afd", "layers=2", "seeds=3", "load.kind=lognormal", "kv.low=512",
                 "kv.high=4096")  # fmt: skip
    assert cluster(tmp_path, *arguments) == 0
    found = result(tmp_path)
    assert (found["dies"], found["roles"]) == (128, {"attention": 64, "ffn": 64})
    assert found["seeds"] == [0, 1, 2]
    steps = found["steps_ms"]
    assert found["step_ms"]["mean"] == pytest.approx(sum(steps) / 3)
    assert min(steps) <= found["step_ms"]["p50"] <= found["step_ms"]["p99"] <= max(steps)
    assert found["tpot_ms"]["mean"] == pytest.approx(found["step_ms"]["mean"] / 2.15)
    assert len(found["ranks"]["tokens"]) == len(found["ranks"]["active_experts"]) == 64
    waits = {"op", "wait_us", "longest_us", "work_us", "slowest_rank", "slowest_share"}
    assert all(set(wait) == {*waits, "waited_for"} for wait in found["waits"])
    assert [(wait["layer"], wait["role"]) for wait in found["event_waits"]] == [
        (0, "attention"), (0, "ffn"), (1, "attention"), (1, "ffn"),
    ]  # fmt: skip
    assert set(found["bounds"]) == {"attention", "ffn"}
    printed = capsys.readouterr().out
    for text in ("128 dies", "p99", "busiest rank", "late because of", "wait", "main streams of"):
        assert text in printed


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    save_schedule(colocated(16), tmp_path / "small.yaml")
    arguments = (f"schedule={tmp_path}/small.yaml", "layers=2", "seeds=2", "load.kind=zipf",
                 "+hardware.values.hbm_capacity_bytes=1e12")  # fmt: skip
    texts = []
    for name in ("one", "two"):
        assert cluster(tmp_path / name, *arguments) == 0
        texts.append((tmp_path / name / "result.json").read_bytes())
    assert texts[0] == texts[1]
    assert (tmp_path / "one" / "timing.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["seeds=0"], "seeds"),
        (["seed=-1"], "seed"),
        (["layers=0"], "1 to 28"),
        (["layers=-1"], "1 to 28"),
        (["layers=29"], "1 to 28"),
        (["load.kind=pareto"], "balanced"),
        (["load.exponent=-1"], "load.exponent"),
        (["kv.low=5"], "low and high"),
        (["jitter.other=9"], "jitter.other"),
        (["load.kind=file", "load.file=nowhere.csv"], "nowhere.csv"),
        (["placement.kind=file", "placement.file=nowhere.csv"], "load.kind=balanced"),
        (["placement.kind=spread"], "load.kind=balanced"),
        (["load.kind=zipf", "placement.kind=file", "placement.file=gone.csv"], "gone.csv"),
        (["schedule=nowhere"], "nowhere"),
        (["+hardware.values.link_gbps=1e300"], "link_gbps"),
    ],
)
def test_wrong_input(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster(tmp_path, "layers=1", "seeds=1", *arguments) == 2
    assert named in capsys.readouterr().err


def test_what_does_not_fit_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "+hardware.values.hbm_capacity_bytes=1e10"
    assert cluster(tmp_path / "out", "layers=1", small) == 3
    assert "GiB" in capsys.readouterr().err
    assert result(tmp_path / "out")["infeasible"] == {"memory of a colocated die": 1}
