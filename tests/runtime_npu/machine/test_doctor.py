"""The doctor: each fault found and its fix said; exit codes; the published buffer sizes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hardware_models.hardware import load_hardware
from runtime_npu.doctor import DoctorOptions, examine, main
from runtime_npu.machine import software
from runtime_npu.machine.devices import (
    GIB,
    Device,
    Probed,
    ask,
    check_cores,
    check_devices,
    check_memory,
    check_ops,
)
from runtime_npu.machine.environment import check_buffer, check_expansion_mode, check_ranks
from runtime_npu.machine.software import check_cann, check_driver, check_torch_pair
from runtime_npu.npu_ops import DIRECT_OPS, NEEDED_OPS, needed_ops
from twin.cli import run as run_command
from twin.deployment import Afd, RoleDeployment
from twin.memory import exchange_buffer_mib
from twin.models import load_model
from twin.schedule import PrefillPlan, Schedule
from twin.schedule_io import load_schedule

A3 = load_hardware("a3-752t")
DIE = Device("Ascend910_9391", free_bytes=60 * GIB, total_bytes=64 * GIB, aic=24, aiv=48)
NODE = Probed(devices=(DIE,) * 16)
SCHEDULE = load_schedule("recipe_colocated")


def test_without_an_npu_it_says_so_and_exits_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("doctor", DoctorOptions, main, [f"output={tmp_path}"]) == 4
    assert "no NPU" in capsys.readouterr().err
    findings = json.loads((tmp_path / "result.json").read_text())["findings"]
    assert {finding["check"] for finding in findings} >= {"driver", "CANN", "devices", "ops"}
    assert all(finding["fix"] for finding in findings if finding["status"] == "fault")


def test_a_wrong_schedule_is_the_users_fault(tmp_path: Path) -> None:
    words = [f"output={tmp_path}", "schedule=nothing_like_it"]
    assert run_command("doctor", DoctorOptions, main, words) == 2


def test_driver_needs_its_files_and_its_device_nodes(tmp_path: Path) -> None:
    assert check_driver(tmp_path).status == "fault"
    info = tmp_path / software.DRIVER_INFO
    info.parent.mkdir(parents=True)
    info.write_text("Version=25.2.0\n")
    assert check_driver(tmp_path).status == "fault"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "davinci0").touch()
    (tmp_path / "dev" / "davinci_manager").touch()
    found = check_driver(tmp_path)
    assert (found.status, found.found) == ("ok", "25.2.0, 1 device nodes")


def toolkit(root: Path, version: str) -> Path:
    folder = root / software.TOOLKITS[1]
    (folder / "x86_64-linux").mkdir(parents=True)
    (folder / "x86_64-linux" / "ascend_toolkit_install.info").write_text(f"version={version}\n")
    return folder


@pytest.mark.parametrize(
    ("version", "status"), [("8.3.RC1", "fault"), ("8.5.0", "ok"), ("9.0.0", "ok")]
)
def test_cann_is_found_and_its_version_judged(version: str, status: str, tmp_path: Path) -> None:
    assert check_cann(tmp_path, {}).status == "fault"
    folder = toolkit(tmp_path, version)
    found = check_cann(tmp_path, {"ASCEND_HOME_PATH": str(folder)})
    assert (found.status, found.found) == (status, version)


def test_cann_that_no_shell_has_set_up_is_a_fault(tmp_path: Path) -> None:
    folder = toolkit(tmp_path, "8.5.0")
    found = check_cann(tmp_path, {})
    assert found.status == "fault"
    assert found.fix == f"source {folder}/set_env.sh"


@pytest.mark.parametrize(
    ("torch", "torch_npu", "status"),
    [
        ("2.13.0+cpu", "2.13.0", "ok"),
        ("2.12.0", "2.13.0", "fault"),
        ("2.13.0", None, "fault"),
    ],
)
def test_torch_and_torch_npu_must_be_the_pair(
    torch: str, torch_npu: str | None, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"torch": torch, "torch_npu": torch_npu}
    monkeypatch.setattr(software, "_installed", versions.__getitem__)
    assert check_torch_pair().status == status


def test_devices_cores_memory_and_ops_are_judged() -> None:
    assert check_devices(NODE).found == "16 x Ascend910_9391"
    assert check_devices(Probed()).status == "fault"
    assert check_devices(Probed(fault="ImportError: libhccl.so")).found.endswith("libhccl.so")
    assert check_cores(NODE, A3).status == "ok"
    assert check_cores(Probed(devices=(replace(DIE, aic=20),)), A3).status == "fault"
    fuller = Probed(devices=(DIE, replace(DIE, free_bytes=10 * GIB)))
    assert check_memory(NODE, 19 * GIB).status == "ok"
    assert check_memory(fuller, 19 * GIB).status == "fault"
    assert check_ops(NODE, NEEDED_OPS).status == "ok"
    assert "npu_prefetch" in check_ops(Probed((DIE,), ("npu_prefetch",)), NEEDED_OPS).found
    # An op is missed only where the schedule needs it.
    without = Probed((DIE,), DIRECT_OPS)
    paired = load_schedule("recipe_afd").deployment
    straight = replace(paired, afd=Afd(transport="direct"))
    assert check_ops(without, needed_ops(paired)).status == "ok"
    assert check_ops(without, needed_ops(straight)).status == "fault"
    for check in (check_cores(Probed(), A3), check_memory(Probed(), 1)):
        assert check.status == "unknown"


def with_batch(schedule: Schedule, batch: int) -> Schedule:
    return replace(schedule, workload=replace(schedule.workload, global_batch=batch))


def test_the_buffer_is_checked_against_the_formula() -> None:
    model = load_model(SCHEDULE.model)
    default = check_buffer(SCHEDULE, model, A3, {})
    assert default.status == "ok"
    assert default.found.startswith("200 MB, 200 needed")
    large = with_batch(SCHEDULE, 2048)
    short = check_buffer(large, model, A3, {"HCCL_BUFFSIZE": "500"})
    # Four times the published 153.4 MB at 12 rows a die, plus 11.
    assert (short.status, short.fix) == ("fault", "export HCCL_BUFFSIZE=625")
    assert check_buffer(large, model, A3, {"HCCL_BUFFSIZE": "625"}).status == "ok"
    assert check_buffer(large, model, A3, {"HCCL_BUFFSIZE": "lots"}).status == "fault"


def test_the_buffer_of_prefill_is_that_of_the_decode_steps_behind_it() -> None:
    schedule = load_schedule("recipe_prefill")
    model = load_model(schedule.model)
    assert check_buffer(schedule, model, A3, {}).found.startswith("200 MB, 200 needed")
    # A token a sequence, 100 of them on each of the 32 dies, whatever micro-batches prefill has.
    large = replace(with_batch(schedule, 3200), prefill=PrefillPlan(micro_batches=4))
    rows = exchange_buffer_mib(
        local_experts=16, rows=100, ranks=32, hidden=model.hidden_size, topk=model.moe_topk
    )
    assert rows > 200
    assert check_buffer(large, model, A3, {}).fix == f"export HCCL_BUFFSIZE={rows}"


def test_collectives_run_on_vector_cores() -> None:
    assert check_expansion_mode({"HCCL_OP_EXPANSION_MODE": "AIV"}).status == "ok"
    assert check_expansion_mode({"HCCL_OP_EXPANSION_MODE": "AI_CPU"}).status == "fault"
    assert check_expansion_mode({}).fix == "export HCCL_OP_EXPANSION_MODE=AIV"


@pytest.mark.parametrize(
    ("environment", "devices", "status"),
    [
        ({}, 16, "ok"),
        ({}, None, "unknown"),
        ({"LOCAL_WORLD_SIZE": "16", "WORLD_SIZE": "128"}, 16, "ok"),
        ({"LOCAL_WORLD_SIZE": "16", "WORLD_SIZE": "128"}, 8, "fault"),
        ({"LOCAL_WORLD_SIZE": "16", "WORLD_SIZE": "64"}, 16, "fault"),
        ({"WORLD_SIZE": "128"}, 16, "fault"),
        ({"LOCAL_WORLD_SIZE": "16", "WORLD_SIZE": "128"}, None, "unknown"),
    ],
)
def test_ranks_fit_the_node_and_the_deployment(
    environment: dict[str, str], devices: int | None, status: str
) -> None:
    assert check_ranks(SCHEDULE.deployment, devices, environment).status == status


def test_a_probe_that_fails_or_hangs_is_a_finding() -> None:
    python = sys.executable
    assert ask([python, "-c", "raise ImportError('libhccl.so')"]).fault.endswith("libhccl.so")
    logs = "atexit.register(lambda: print('ERR00008 no more', file=sys.stderr))"
    code = f"import atexit, sys; {logs}; raise Exception('no set_env.sh')"
    assert ask([python, "-c", code]).fault == "Exception: no set_env.sh"
    assert "no answer" in ask([python, "-c", "import time; time.sleep(60)"], 0.5).fault


@pytest.mark.parametrize("schedule", ["recipe_colocated", "recipe_prefill", "recipe_afd"])
def test_a_machine_with_all_of_it_has_no_fault(
    schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / software.DRIVER_INFO
    info.parent.mkdir(parents=True)
    info.write_text("Version=25.2.0\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "davinci0").touch()
    environment = {
        "ASCEND_HOME_PATH": str(toolkit(tmp_path, "8.5.0")),
        "HCCL_OP_EXPANSION_MODE": "AIV",
    }
    monkeypatch.setattr(software, "_installed", lambda name: "2.13.0")
    answer = {"devices": [{f: getattr(DIE, f) for f in DIE.__slots__}] * 16, "missing_ops": []}
    probe = [sys.executable, "-c", f"print({json.dumps(json.dumps(answer))})"]
    findings = examine(DoctorOptions(schedule=schedule), environment, tmp_path, probe)
    assert {finding.status for finding in findings} == {"ok"}


def test_ranks_of_every_node_are_counted() -> None:
    deployment = replace(SCHEDULE.deployment, roles={"colocated": RoleDeployment(dies=128, ep=128)})
    assert check_ranks(deployment, 16, {}).found.endswith("128 ranks are 8 nodes of 16")
