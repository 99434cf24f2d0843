"""Searches over deployments whose attention groups span dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hardware_models.hardware import load_hardware
from twin.cli import run
from twin.evaluate import evaluate
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.__main__ import main
from twin.search.config import SearchConfig

FEW = [f"search.knobs.{name}.levels=[0,1]" for name in ("mla_1", "gate_up", "router")]
FEW += [f"search.knobs.{name}.levels=[1]" for name in ("mla_0", "down")]
FEW += [
    "search.knobs.main_cores.levels=[16]",
    "search.knobs.main_vector_cores.levels=[32]",
    "draws=0",
    "workers=1",
]


def search(folder: Path, *arguments: str) -> dict[str, Any]:
    assert run("search", SearchConfig, main, [*arguments, *FEW, f"output={folder}"]) == 0
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    return loaded


def test_the_long_context_scenario_serves_the_published_example(tmp_path: Path) -> None:
    """EP32, kvp 8, batch 4, 131072 tokens; the best simulates to what the search says."""
    found = search(tmp_path, "scenario=long_context")
    assert (found["candidates"], found["feasible"]) == (8, 8)
    best = load_schedule(str(tmp_path / "schedule.yaml"))
    role = best.deployment.attention
    assert (role.dies, role.ep, role.kvp, best.workload.global_batch) == (32, 32, 8, 4)
    assert best.workload.kv_tokens + best.workload.rows_per_sequence == 131072
    model, hardware = load_model(best.model), load_hardware(best.deployment.hardware)
    again = evaluate(best, model, hardware)
    assert found["best"]["step_ms"] * 1e3 == pytest.approx(again.step_us)
    # A prefetch behind dense.N.all_gather, which KVP lacks, hangs on the op before it.
    shipped = evaluate(load_schedule("recipe_long_context"), model, hardware)
    assert again.step_us <= shipped.step_us * (1 + 1e-9)


@pytest.mark.parametrize(
    "sizes", [["deployment.attention_tp=8"], ["deployment.kvp=8", "workload=no_mtp"]]
)
def test_parallel_sizes_of_the_recipe_can_be_overridden(tmp_path: Path, sizes: list[str]) -> None:
    found = search(tmp_path, "scenario=colocated", *sizes)
    assert found["feasible"] == found["candidates"] == 8
    role = load_schedule(str(tmp_path / "schedule.yaml")).deployment.attention
    assert role.group_dies == 8
