"""The launch commands: files, costs, exit codes, and help."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware_models.hardware import load_hardware
from twin.deployment import Role, RoleDeployment
from twin.evaluate import evaluate
from twin.launch.__main__ import main
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule, save_schedule
from twin.search.changes import with_core_split, with_ratio

HARDWARE = load_hardware("a3-752t")


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


def tpot_ms(schedule: Schedule) -> float:
    return evaluate(schedule, load_model(schedule.model), HARDWARE).latency_us / 1e3


@pytest.mark.parametrize("name", ["recipe_afd", "recipe_colocated", "recipe_long_context"])
def test_an_exported_recipe_imports_to_the_same_schedule(name: str, tmp_path: Path) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    assert main(["export", f"schedule={name}", "target=recipe", f"output={out}"]) == 0
    found = result(out)
    assert found["exact"] == (found["unsayable"] == [])
    beside = found["beside"]
    words = [f"{k}={beside[k]}" for k in ("kv_tokens", "acceptance")]
    assert main(["import", f"file={out / 'launch.yaml'}", *words, f"output={back}"]) == 0
    assert load_schedule(str(back / "schedule.yaml")) == load_schedule(str(out / "nearest.yaml"))
    assert found["exact"]
    assert load_schedule(str(back / "schedule.yaml")) == load_schedule(name)
    assert result(back)["assumed"]["kv_tokens"] == beside["kv_tokens"]


def _varied() -> list[Schedule]:
    colocated = with_core_split(load_schedule("recipe_colocated"), "stage2", 20, HARDWARE)
    afd = load_schedule("recipe_afd")
    workload = replace(afd.workload, global_batch=384)
    return [
        replace(colocated, prefetch=colocated.prefetch[2:]),
        with_ratio(replace(afd, workload=workload), 3),
    ]


@pytest.mark.parametrize("schedule", _varied())
def test_costs_are_those_of_simulated_schedules(schedule: Schedule, tmp_path: Path) -> None:
    path, out = tmp_path / "asked.yaml", tmp_path / "out"
    save_schedule(schedule, path)
    assert main(["export", f"schedule={path}", "target=recipe", f"output={out}"]) == 0
    found = result(out)
    assert found["tpot_ms"] == pytest.approx(tpot_ms(schedule), rel=1e-9)
    nearest = load_schedule(str(out / "nearest.yaml"))
    assert found["nearest_tpot_ms"] == pytest.approx(tpot_ms(nearest), rel=1e-9)
    steps = found["unsayable"]
    assert steps
    total = sum(step["cost_ms"] for step in steps)
    assert total == pytest.approx(found["nearest_tpot_ms"] - found["tpot_ms"], abs=1e-9)
    assert total != 0.0


def test_the_plugins_commands_are_written_and_what_they_lack_is_listed(tmp_path: Path) -> None:
    assert main(["export", "schedule=recipe_afd", "target=afd_plugin", f"output={tmp_path}"]) == 0
    found = result(tmp_path)
    listed = {row["field"] for step in found["unsayable"] for row in step["fields"]}
    assert {"deployment.afd.transport", "prefetch", "deployment.roles.dense_tp"} <= listed
    assert (tmp_path / "launch.sh").read_text().count("vllm serve") == 2
    assert found["reason"] is None
    assert sum(step["cost_ms"] for step in found["unsayable"]) == pytest.approx(
        found["nearest_tpot_ms"] - found["tpot_ms"]
    )
    # What it launches is said whole.
    back, again = tmp_path / "back", tmp_path / "again"
    words = [f"file={tmp_path / 'launch.sh'}", "acceptance=1.15", f"output={back}"]
    assert main(["import", *words]) == 0
    schedule = back / "schedule.yaml"
    assert load_schedule(str(schedule)) == load_schedule(str(tmp_path / "nearest.yaml"))
    words = [f"schedule={schedule}", "target=afd_plugin", f"output={again}"]
    assert main(["export", *words]) == 0
    assert result(again)["exact"]
    assert (again / "launch.sh").read_text() == (tmp_path / "launch.sh").read_text()


def test_a_kept_file_comes_back_byte_for_byte_in_its_keys(tmp_path: Path) -> None:
    assert main(["export", f"output={tmp_path / 'a'}"]) == 0
    first = tmp_path / "a" / "launch.yaml"
    changed = first.read_text().replace("max_new_tokens: 512", "max_new_tokens: 7")
    first.write_text(changed)
    assert main(["export", f"keep={first}", f"output={tmp_path / 'b'}"]) == 0
    assert (tmp_path / "b" / "launch.yaml").read_text() == changed


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        ([], 2, "export, import"),
        (["exprot"], 2, "exprot"),
        (["export", "schedule=nowhere"], 2, "nowhere"),
        (["export", "target=helm"], 2, "recipe, afd_plugin"),
        (["export", "schedule=recipe_colocated", "target=afd_plugin"], 2, "target=recipe"),
        (["export", "keep=nowhere.yaml"], 2, "nowhere.yaml"),
        (["import"], 2, "file"),
        (["import", "file=nowhere.yaml"], 2, "nowhere.yaml"),
        (["import", "file=launch.conf"], 2, "target"),
        (["import", "file=a.yaml", "flags='--seed 1'"], 2, "flags"),
        (["import", "flie=a.yaml"], 2, "flie"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], code: int, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = [f"output={tmp_path}"] if len(words) > 1 or words == ["import"] else []
    assert main([*words, *output]) == code
    error = capsys.readouterr().err
    assert named in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_nothing_near_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = load_schedule("recipe_afd")
    # One expert copied makes 513 for 3 FFN dies; without the copy no 3 k dies share 512.
    deployment = schedule.deployment
    attention = RoleDeployment(dies=3, dense_tp=3)
    roles: dict[Role, RoleDeployment] = {
        "attention": attention,
        "ffn": RoleDeployment(dies=3, ep=3),
    }
    asked = replace(
        schedule,
        prefetch=(),
        deployment=replace(deployment, roles=roles),
        workload=replace(schedule.workload, global_batch=12),
        moe=replace(schedule.moe, redundant_experts=1),
    )
    path = tmp_path / "asked.yaml"
    save_schedule(asked, path)
    assert main(["export", f"schedule={path}", f"output={tmp_path}"]) == 3
    assert "no split of 6 dies" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["export", "--help"], ["import", "--help"]])
def test_help_lists_the_keys(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "output" in said
    assert "Exit codes" in said
