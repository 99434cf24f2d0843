"""The launch of a run on NPUs: every fault has a name and a fix, before anything is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hardware_models.errors import InputError, MachineError
from hardware_models.hardware import load_hardware
from runtime_npu.machine import launch, software
from runtime_npu.machine.devices import GIB
from runtime_npu.machine.environment import (
    ADVISED,
    DIES_PER_NODE,
    VISIBLE,
    check_advised,
    check_ranks,
    check_visible,
    environment_findings,
)
from runtime_npu.machine.launch import require_npus
from runtime_npu.options import RunOptions
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.run import main
from twin.cli import run as run_command
from twin.models import load_model
from twin.schedule_io import load_schedule, save_schedule
from twin.search.transport import with_transport

A3 = load_hardware("a3-752t")
SCHEDULE = load_schedule("recipe_colocated")
MODEL = load_model(SCHEDULE.model)
GOOD = {
    "HCCL_OP_EXPANSION_MODE": "AIV",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "16",
    "WORLD_SIZE": "128",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file system of a machine with driver and CANN, and the torch pair."""
    info = tmp_path / software.DRIVER_INFO
    info.parent.mkdir(parents=True)
    info.write_text("Version=25.2.0\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "davinci0").touch()
    toolkit = tmp_path / "cann"
    (toolkit / "x86_64-linux").mkdir(parents=True)
    (toolkit / "x86_64-linux" / "ascend_toolkit_install.info").write_text("version=8.5.0\n")
    monkeypatch.setattr(software, "_installed", lambda name: "2.13.0")
    return tmp_path


def probe(devices: int) -> Sequence[str]:
    """A probe that answers with so many dies."""
    die = {
        "name": "Ascend910_9391",
        "free_bytes": 60 * GIB,
        "total_bytes": 64 * GIB,
        "aic": 24,
        "aiv": 48,
    }
    answer = json.dumps({"devices": [die] * devices, "missing_ops": []})
    return [sys.executable, "-c", f"print({answer!r})"]


def launched(root: Path, devices: int = 16, **changed: str | None) -> None:
    named = {**GOOD, "ASCEND_HOME_PATH": str(root / "cann"), **changed}
    environment = {name: text for name, text in named.items() if text is not None}
    require_npus(SCHEDULE, MODEL, A3, environment, root, probe(devices))


def test_a_machine_that_has_all_of_it_may_run(root: Path) -> None:
    launched(root)


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("HCCL_BUFFSIZE", "100", "export HCCL_BUFFSIZE=200"),
        ("HCCL_OP_EXPANSION_MODE", "AI_CPU", "export HCCL_OP_EXPANSION_MODE=AIV"),
        ("HCCL_OP_EXPANSION_MODE", None, "export HCCL_OP_EXPANSION_MODE=AIV"),
        ("ASCEND_RT_VISIBLE_DEVICES", "0,1", "name a device for each of the node's 16 ranks"),
        ("ASCEND_RT_VISIBLE_DEVICES", "0-15", "unset ASCEND_RT_VISIBLE_DEVICES"),
        ("HCCL_CONNECT_TIMEOUT", "soon", "export HCCL_CONNECT_TIMEOUT=1200"),
        ("WORLD_SIZE", "64", "launch 128 ranks, one a die"),
        ("LOCAL_WORLD_SIZE", "32", "launch at most 16 ranks a node"),
    ],
)
def test_a_fault_of_the_environment_is_named_with_its_fix(
    name: str, text: str | None, fix: str, root: Path
) -> None:
    check = "ranks per node" if name.endswith("WORLD_SIZE") else name
    for rank in ("0", "5"):
        with pytest.raises(MachineError, match="this launch cannot work") as caught:
            launched(root, LOCAL_RANK=rank, **{name: text})
        assert f"\n  {check}: " in str(caught.value)
        assert fix in str(caught.value)


def test_a_machine_without_devices_is_told_so_and_what_else_would_do(root: Path) -> None:
    with pytest.raises(MachineError, match="no NPU that torch_npu can use") as caught:
        launched(root, devices=0)
    assert "device=cpu executes the same schedule" in str(caught.value)


def test_the_other_ranks_of_a_node_do_not_ask_the_machine_again(root: Path) -> None:
    launched(root, devices=0, LOCAL_RANK="1")


def test_a_local_rank_that_is_no_number_is_refused_by_name(root: Path) -> None:
    with pytest.raises(InputError, match="LOCAL_RANK: got 'x'"):
        launched(root, LOCAL_RANK="x")


def test_too_few_devices_without_torchrun_name_the_command(root: Path) -> None:
    nothing = {"LOCAL_RANK": None, "LOCAL_WORLD_SIZE": None, "WORLD_SIZE": None}
    with pytest.raises(MachineError, match="torchrun --nnodes=8 --nproc-per-node=16"):
        launched(root, **nothing)


def test_all_faults_are_said_at_once(root: Path) -> None:
    with pytest.raises(MachineError) as caught:
        launched(root, HCCL_BUFFSIZE="1", HCCL_OP_EXPANSION_MODE=None)
    assert str(caught.value).count("\n  ") == 2


def test_this_machine_has_no_npu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"output={tmp_path}", "device=npu"]
    assert run_command("run", RunOptions, main, words) == 4
    said = capsys.readouterr().err
    assert "device=npu: there is no NPU" in said
    assert "runtime_npu.doctor" in said
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["schedule=cpu/dp2"], "deployment.quantisation"),
        (["schedule=recipe_colocated", "temperature=0.5"], "temperature"),
        (["schedule=recipe_colocated", "warmup_steps=-1"], "warmup_steps"),
        (["device=cpu", "compile_cache=x"], "compile_cache"),
    ],
)
def test_what_an_npu_run_does_not_do_is_refused_by_name(
    words: list[str],
    field: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime_npu.run.require_npus", lambda *_: None)
    given = [f"output={tmp_path}", "device=npu", *words]
    if "device=cpu" in words:
        given.remove("device=npu")
    assert run_command("run", RunOptions, main, given) == 2
    assert f"{field}: got" in capsys.readouterr().err


def test_direct_transfers_need_windows_and_no_larger_buffers() -> None:
    """64 dies with 512 rows each: a dispatch of as many would ask for more than 200 MB."""
    schedule = with_transport(load_schedule("recipe_afd"), "direct")
    schedule = replace(schedule, workload=replace(schedule.workload, global_batch=64 * 128))
    model, hardware = load_model(schedule.model), load_hardware("a3-752t")
    for value, status in (("1", "fault"), ("0", "ok")):
        environment = {"HCCL_ZERO_COPY": value}
        found = {
            finding.check: finding
            for finding in environment_findings(schedule, model, hardware, environment, None)
        }
        assert found["HCCL_ZERO_COPY"].status == status
        assert found["HCCL_BUFFSIZE"].found == "200 MB, 200 needed (unset: the default)"
    paired = with_transport(schedule, "sdma_pairs")
    checks = environment_findings(paired, model, hardware, {"HCCL_ZERO_COPY": "1"}, None)
    by_name = {finding.check: finding for finding in checks}
    assert "HCCL_ZERO_COPY" not in by_name
    assert by_name["HCCL_BUFFSIZE"].status == "fault"


def test_more_prompts_than_windows_have_rows_for_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime_npu.run.require_npus", lambda *_: None)
    schedule = load_schedule("cpu/afd_direct")
    model = replace(load_model("tiny"), hidden_size=1024, qk_rope_head_dim=64)
    ffn = replace(schedule.deployment.moe, dies=2, ep=2)
    roles = {**schedule.deployment.roles, "ffn": ffn}
    deployment = replace(schedule.deployment, quantisation="bf16", roles=roles)
    make_checkpoint(tmp_path / "checkpoint", model, 0, "bfloat16")
    changed = replace(
        schedule, deployment=deployment, model=str(tmp_path / "checkpoint" / "config.json")
    )
    save_schedule(changed, tmp_path / "schedule.yaml")
    words = [f"schedule={tmp_path}/schedule.yaml", "device=npu", f"output={tmp_path}/run"]
    nine = f"prompt_ids={[[1, 2]] * 9}".replace(" ", "")
    assert run_command("run", RunOptions, main, [*words, nine]) == 2
    said = capsys.readouterr().err
    assert "prompts: got 9; allowed: at most 8 with direct transfers" in said


def test_visible_devices_are_read_as_a_list() -> None:
    assert check_visible({}).status == "ok"
    assert check_visible({VISIBLE: "0,1,2,3", "LOCAL_WORLD_SIZE": "4"}).status == "ok"
    for text in ("0,0", "", "0, 1", "all", "-1"):
        assert check_visible({VISIBLE: text}).status == "fault"


def test_a_node_has_no_more_ranks_than_dies() -> None:
    environment = {"WORLD_SIZE": "128", "LOCAL_WORLD_SIZE": str(DIES_PER_NODE + 1)}
    assert check_ranks(SCHEDULE.deployment, None, environment).status == "fault"
    few = replace(SCHEDULE.deployment.roles["colocated"], dies=16, ep=16)
    deployment = replace(SCHEDULE.deployment, roles={"colocated": few})
    assert check_ranks(deployment, 16, {}, is_run=True).status == "ok"


def test_what_is_only_advised_may_be_left_unset() -> None:
    for name, advice in ADVISED.items():
        assert advice in check_advised(name, {}).found
        assert check_advised(name, {name: advice}).status == "ok"
    assert check_advised("HCCL_EXEC_TIMEOUT", {"HCCL_EXEC_TIMEOUT": "0"}).status == "fault"


def test_the_doctor_and_the_run_check_the_same_environment() -> None:
    found = environment_findings(SCHEDULE, MODEL, A3, GOOD, 16)
    names = {finding.check for finding in found}
    assert {"HCCL_BUFFSIZE", "HCCL_OP_EXPANSION_MODE", VISIBLE, "ranks per node"} <= names
    assert all(finding.fix for finding in found if finding.status == "fault")
    assert launch.PROBE[1:3] == ("-m", "runtime_npu.machine.probe")
