"""A search of prefill schedules: brute force, baselines, refused knobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hardware_models.hardware import load_hardware
from twin.cli import run
from twin.evaluate import evaluate
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.__main__ import main
from twin.search.config import SearchConfig
from twin.search.shards import POINTS

SMALL = [
    "scenario=prefill",
    "search.knobs.o_proj_tp.levels=[1,8]",
    "search.knobs.dense_tp.levels=[1,8]",
    "search.knobs.chunk.levels=[2048,8192]",
    "search.knobs.micro_batches.levels=[1,2,3]",
    "draws=2",
    "top=3",
    "workers=1",
]


def search(folder: Path, *arguments: str) -> int:
    return run("search", SearchConfig, main, [*arguments, f"output={folder}"])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefill")
    assert search(folder, *SMALL) == 0
    return folder


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    return loaded


def test_the_best_has_the_least_ttft_and_its_file_alone_gives_it_again(ran: Path) -> None:
    found = result(ran)
    points = pq.read_table(ran / POINTS, use_threads=False)["latency_us"].to_pylist()
    best = found["best"]
    assert "tpot_ms" not in best
    assert best["ttft_ms"] == pytest.approx(min(points) / 1e3, rel=1e-9)
    schedule = load_schedule(str(ran / "schedule.yaml"))
    again = evaluate(schedule, load_model(schedule.model), load_hardware("a3-752t"))
    assert again.step_us / 1e3 == best["ttft_ms"]
    tokens = schedule.workload.global_batch * schedule.workload.kv_tokens
    dies = schedule.deployment.total_dies
    assert best["tokens_per_s_per_die"] == pytest.approx(tokens / again.step_us * 1e6 / dies)


def test_more_micro_batches_than_sequences_are_counted_as_infeasible(ran: Path) -> None:
    found = result(ran)
    assert (found["candidates"], found["feasible"]) == (24, 16)
    (reason,) = found["infeasible"]
    assert reason.startswith("prefill.micro_batches: 1 to 2")


def test_the_base_stands_beside_the_best(ran: Path) -> None:
    found = result(ran)
    names = [entry["name"] for entry in found["baselines"]]
    assert names == ["base schedule", "one chunk, one micro-batch", "no tensor parallelism"]
    assert all(entry["ttft_ms"] >= found["best"]["ttft_ms"] for entry in found["baselines"])


@pytest.mark.parametrize(
    "wrong",
    [
        ["scenario=prefill", "search.knobs.o_proj_tp.sizes=[ep]"],
        ["scenario=prefill", "search.knobs.o_proj_tp.sizes=null"],
        ["scenario=prefill", "search.knobs.chunk.levels=[0]"],
        ["scenario=colocated", "+search.knobs.chunk={drives: chunk, levels: [1024]}"],
        ["scenario=colocated", "+search.knobs.parts={drives: micro_batches, levels: [2]}"],
    ],
)
def test_knobs_that_make_no_sense_are_wrong_input(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(tmp_path, *wrong) == 2
    assert "search.knobs." in capsys.readouterr().err
