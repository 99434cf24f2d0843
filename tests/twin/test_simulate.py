"""The simulate command: keys, bytes, options, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware_models.hardware import load_hardware
from twin.cli import run
from twin.entry import entry_of
from twin.evaluate import evaluate, with_interval
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule, save_schedule, shipped_schedules
from twin.simulate import SimulateConfig, main
from twin.uncertainty import draw_hardware, latency_spread


def simulate(folder: Path, *arguments: str) -> int:
    return run("simulate", SimulateConfig, main, [*arguments, f"output={folder}"])


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


@pytest.mark.parametrize("name", shipped_schedules())
def test_every_shipped_schedule_is_simulated(name: str, tmp_path: Path) -> None:
    assert simulate(tmp_path, f"schedule={name}", "draws=0") == 0
    found = result(tmp_path)
    assert found["step_ms"] > 0
    assert found["interval"] is None
    keys = {"name", "kind", "die", "stream", "start_us", "end_us", "wait_us", "bound"}
    assert all(set(op) == keys for op in found["ops"])
    steps = [op["end_us"] for op in found["ops"] if op["kind"] != "prefetch"]
    assert max(steps) / 1e3 == found["step_ms"]
    for file in ("trace.json", "report.html", "timing.json"):
        assert (tmp_path / file).stat().st_size > 0


def test_the_row_is_that_of_an_evaluation(tmp_path: Path) -> None:
    assert simulate(tmp_path, "schedule=recipe_afd", "draws=2") == 0
    found = result(tmp_path)
    schedule = load_schedule("recipe_afd")
    model, hardware = load_model(schedule.model), load_hardware(schedule.deployment.hardware)
    quick = evaluate(schedule, model, hardware)
    quick = with_interval(
        quick, latency_spread(schedule, model, draw_hardware(hardware, 2, 0)), hardware
    )
    entry = entry_of("recipe_afd", quick, "recipe_afd")
    for key in ("step_ms", "tpot_ms", "tokens_per_s_per_die", "tokens_per_s_per_chip", "interval"):
        assert found[key] == pytest.approx(entry[key], rel=1e-9)
    assert found["hbm_gib"] == entry["hbm_gib"]


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert simulate(tmp_path / name, "schedule=recipe_afd", "draws=3", "seed=5") == 0
    for file in ("result.json", "trace.json", "report.html"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_clipped_prefetches_are_said_and_recorded_with_both_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(tmp_path, "schedule=recipe_colocated", "draws=0") == 0
    assert "attention.1.kv_a" in capsys.readouterr().out
    clipped = result(tmp_path)["clipped_prefetches"]
    assert clipped
    assert all(c["asked_bytes"] > c["given_bytes"] for c in clipped)
    assert {c["weight"].rpartition(".")[2] for c in clipped} == {"kv_a"}


def test_options_change_the_answer(tmp_path: Path) -> None:
    base = ["schedule=recipe_colocated", "draws=0"]
    variants = {
        "plain": [],
        "alone": ["contention=false"],
        "late": ["+hardware.values.sdma_gbps=300"],
        "stops": ["+hardware.values.sdma_gbps=300", "unfinished_prefetch=stops"],
        "slow": ["+hardware.values.hbm_read_gbps=700"],
    }
    steps = {}
    for name, extra in variants.items():
        assert simulate(tmp_path / name, *base, *extra) == 0
        steps[name] = result(tmp_path / name)["step_ms"]
    assert steps["alone"] <= steps["plain"] < steps["slow"]
    ends = {name: [op["end_us"] for op in result(tmp_path / name)["ops"]] for name in variants}
    assert ends["alone"] != ends["plain"]
    assert ends["stops"] != ends["late"]


def _too_large(schedule: Schedule) -> Schedule:
    role = replace(schedule.deployment.attention, dies=8, ep=8, lm_head_tp=8)
    deployment = replace(schedule.deployment, roles={"colocated": role})
    return replace(
        schedule, deployment=deployment, workload=replace(schedule.workload, global_batch=32)
    )


def test_a_schedule_that_does_not_fit_is_exit_3_with_the_excess(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.yaml"
    save_schedule(_too_large(load_schedule("recipe_colocated")), path)
    assert simulate(tmp_path / "run", f"schedule={path}") == 3
    assert "GiB too much" in capsys.readouterr().err
    assert result(tmp_path / "run")["infeasible"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["schedule=nowhere.yaml"], "nowhere.yaml"),
        (["unfinished_prefetch=hopes"], "unfinished_prefetch"),
        (["hardware.die=a4"], "a4"),
        (["+hardware.values.hbm_raed=1"], "hbm_raed"),
        (["draws=many"], "draws"),
        (["draws=-1"], "draws"),
        (["seed=-1"], "seed"),
        (["layrs=2"], "layrs"),
    ],
)
def test_wrong_input_is_exit_2_and_named(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error
