"""The command: full-size steps in both graph modes, refusals, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import runtime_npu.dryrun as module
from runtime_npu.dryrun import DryrunOptions, LoweringError, main
from twin.cli import run as run_command
from twin.deployment import Afd
from twin.schedule import CoreLimit, Schedule
from twin.schedule_io import load_schedule, save_schedule
from twin.search.transport import with_transport


def command(*words: str) -> int:
    return run_command("dryrun", DryrunOptions, main, list(words))


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
def test_the_recipes_full_size_step_is_lowered_as_scheduled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("rank=37", f"output={tmp_path}") == 0
    found = result(tmp_path)
    assert found["title"] == "lowered, not executed"
    assert (found["mode"], found["rank"], found["role"]) == ("ge_graph", 37, "colocated")
    assert found["differences"] == []
    ops = {op["name"]: op for op in found["ops"]}
    calls = Counter(call for op in found["ops"] for call in op["calls"])
    # Two layers, each with two attentions and one MoE, and two MTP passes.
    assert calls["MlaPrologV3"] == calls["FusedInferAttentionScore"] == 6
    assert calls["MoeDistributeDispatchV2"] == calls["MoeDistributeCombineV2"] == 2
    assert calls["GroupedMatmul"] == 4
    assert calls["QuantBatchMatmulV3"] == 12
    router = ops["layer.0.prefetch.moe.router"]
    assert (router["prefetch_bytes"], router["stream"]) == (18874368, "prefetch")
    assert router["waits"] == ["layer.0.attention.0.o_proj"]
    assert ops["layer.1.moe.gmm2"]["scope"] == "layer.1.stage2.moe"
    assert (ops["layer.1.moe.gmm2"]["aic"], ops["layer.1.moe.gmm2"]["aiv"]) == (8, 16)
    assert ops["layer.0.dense.0.all_gather"]["group"] == "ranks 32-39"
    assert ops["mtp.1.lm_head_all_gather"]["group"] == "ranks 32-47"
    assert ops["layer.0.attention.0.prolog"]["kind"] == "mla_prolog"
    printed = capsys.readouterr().out
    assert printed.startswith("lowered, not executed")
    assert "no difference" in printed
    assert (tmp_path / "listing.txt").read_text().count("\n") == len(found["ops"]) + 2


@pytest.mark.usefixtures("standins")
def test_the_recipes_full_size_prefill_is_launched_as_scheduled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("schedule=recipe_prefill", "rank=9", "layers=1", f"output={tmp_path}") == 0
    found = result(tmp_path)
    assert (found["mode"], found["differences"]) == ("eager", [])
    ops = {op["name"]: op for op in found["ops"]}
    # 8192 rows of a die go through the experts in two chunks.
    for chunk in (0, 1):
        there = ops[f"layer.0.moe.chunk{chunk}.token_all_to_all"]
        assert (there["calls"], there["group"]) == (["HcclAlltoAllV"], "ranks 0-31")
    assert ops["layer.0.attention.0.all_to_all"]["group"] == "ranks 8-15"
    assert ops["layer.0.moe.chunk0.gmm1"]["kind"] == "grouped_matmul"
    assert "lowered, not executed" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
@pytest.mark.parametrize("mode", ["ge_graph", "npugraph_ex"])
@pytest.mark.parametrize(
    "name", ["recipe_colocated", "recipe_colocated_c12v24", "recipe_long_context"]
)
def test_shipped_decode_schedules_are_lowered_as_scheduled(
    name: str, mode: str, tmp_path: Path
) -> None:
    assert command(f"schedule={name}", f"mode={mode}", f"output={tmp_path}") == 0
    found = result(tmp_path)
    scopes = list(load_schedule(name).super_kernel)
    assert (found["mode"], found["left_out"]) == (mode, [] if mode == "ge_graph" else scopes)


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
@pytest.mark.parametrize("mode", ["ge_graph", "npugraph_ex"])
@pytest.mark.parametrize(("rank", "role", "peer"), [(3, "attention", 67), (70, "ffn", 6)])
def test_both_roles_of_the_recipes_afd_are_lowered_as_scheduled(
    rank: int, role: str, peer: int, mode: str, tmp_path: Path
) -> None:
    words = ["schedule=recipe_afd", f"mode={mode}", f"rank={rank}", f"output={tmp_path}"]
    assert command(*words) == 0
    found = result(tmp_path)
    assert found["role"] == role
    ops = {op["name"]: op for op in found["ops"]}
    for name in ("afd.send", "afd.recv"):
        transfer = ops[f"layer.0.{name}"]
        assert (transfer["stream"], transfer["group"]) == ("link", f"rank {peer}")


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
@pytest.mark.parametrize(
    ("scenario", "ranks"), [("colocated", (37,)), ("afd", (3, 70)), ("long_context", (5,))]
)
def test_what_a_search_finds_is_lowered_as_scheduled(
    scenario: str, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    found = tmp_path / "search"
    search = [sys.executable, "-m", "twin.search", f"scenario={scenario}", f"output={found}"]
    subprocess.run(search, check=True, capture_output=True)
    for mode in ("ge_graph", "npugraph_ex"):
        for rank in ranks:
            words = [f"schedule={found}/schedule.yaml", f"mode={mode}", f"rank={rank}"]
            assert command(*words, f"output={tmp_path}/{mode}_{rank}") == 0


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
@pytest.mark.parametrize("mode", ["ge_graph", "npugraph_ex"])
@pytest.mark.parametrize("rank", [3, 70])
def test_direct_transfers_are_lowered_at_full_size(rank: int, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.yaml"
    save_schedule(with_transport(load_schedule("recipe_afd"), "direct"), path)
    words = [f"schedule={path}", f"mode={mode}", f"rank={rank}", f"output={tmp_path}/run"]
    assert command(*words) == 0
    ops = {op["name"]: op for op in result(tmp_path / "run")["ops"]}
    assert ops["layer.0.afd.send"]["group"] == "ranks 0-127"
    assert ops["layer.0.afd.send"]["aiv"] == 8


def test_what_no_npu_executes_is_not_lowered_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = load_schedule("recipe_afd")
    deployment = replace(schedule.deployment, afd=Afd(transport="camp2p"))
    path = tmp_path / "schedule.yaml"
    save_schedule(replace(schedule, deployment=deployment, prefetch=()), path)
    assert command(f"schedule={path}", f"output={tmp_path}/run") == 2
    assert "deployment.afd.transport" in capsys.readouterr().err
    assert not (tmp_path / "run" / "lowering.log").exists()


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
def test_drafts_of_split_heads_and_micro_batches_are_lowered(tmp_path: Path) -> None:
    """Their rows are no longer sorted by sequence."""
    schedule = load_schedule("recipe_afd")
    assert schedule.workload.next_n
    split = replace(schedule.deployment.attention, attention_tp=8, o_proj_tp=8)
    roles = {**schedule.deployment.roles, "attention": split}
    deployment = replace(schedule.deployment, afd=Afd(micro_batches=2), roles=roles)
    path = tmp_path / "schedule.yaml"
    save_schedule(replace(schedule, deployment=deployment), path)
    assert command(f"schedule={path}", f"output={tmp_path}/run") == 0


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
@pytest.mark.parametrize(
    "words",
    [["mode=ge_graph"], ["mode=npugraph_ex"], ["schedule=recipe_prefill"]],
    ids=lambda words: words[0],
)
def test_all_28_layers_can_be_lowered(words: list[str], tmp_path: Path) -> None:
    assert command("layers=null", *words, f"output={tmp_path}") == 0
    assert len([op for op in result(tmp_path)["ops"] if op["name"].endswith(".add")]) == 28


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["schedule=recipe_prefill", "mode=ge_graph"], "deployment.graph_mode"),
        (["schedule=tiny_colocated"], "deployment.quantisation"),
        (["mode=eager"], "stages"),
        (["mode=captured"], "mode"),
        (["rank=128"], "rank"),
        (["layers=0"], "layers"),
        (["layers=29"], "layers"),
    ],
)
def test_what_is_not_lowered_is_refused_by_name(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words, f"output={tmp_path}") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "given", "least"),
    # The recipe's EP128 needs 153.4 and 11 MB of HCCL's own: the default of 200 will do.
    [("recipe_colocated", "199", 200), ("recipe_colocated", "lots", 200)],
)
def test_a_buffer_that_is_too_small_is_refused(
    schedule: str,
    given: str,
    least: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HCCL_BUFFSIZE", given)
    assert command(f"schedule={schedule}", f"output={tmp_path}") == 2
    said = capsys.readouterr().err
    assert f"HCCL_BUFFSIZE: got '{given}'" in said
    assert f"at least {least}" in said


def changed(schedule: Schedule, what: str) -> Schedule:
    """``schedule`` with one fault that torch_npu would not see, or see too late."""
    deployment, workload = schedule.deployment, schedule.workload
    role = deployment.roles["colocated"]
    first, second = schedule.stages
    if what == "core limit 25":
        streams = {**second.streams, "main": CoreLimit(aic=25, aiv=32)}
        return replace(schedule, stages=(first, replace(second, streams=streams)))
    if what == "Bs 513":
        # 171 sequences of 3 rows on a die.
        return replace(schedule, workload=replace(workload, global_batch=171 * 128))
    roles = {"colocated": replace(role, dies=96, ep=96)}
    return replace(schedule, deployment=replace(deployment, roles=roles))


@pytest.mark.parametrize(
    ("what", "field", "allowed"),
    [
        ("core limit 25", "stages[1].streams.main.aic: got 25", "1 to 24"),
        ("Bs 513", "513", "512"),
        ("EP does not divide experts", "deployment.roles.colocated.ep: got 96", "512"),
    ],
)
def test_faults_are_refused_before_lowering(
    what: str, field: str, allowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_schedule(changed(load_schedule("recipe_colocated"), what), tmp_path / "schedule.yaml")
    assert command(f"schedule={tmp_path}/schedule.yaml", f"output={tmp_path}/run") == 2
    said = capsys.readouterr().err
    assert field in said
    assert allowed in said
    assert not (tmp_path / "run" / "lowering.log").exists()


def test_without_the_wheel_it_exits_4_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGCAT_TWIN_CACHE", str(tmp_path / "nothing"))
    assert command(f"output={tmp_path}") == 4
    assert "-m runtime_npu.standins" in capsys.readouterr().err


def answering(answer: dict[str, object] | None) -> Any:
    def run(_: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        if answer is None:
            return subprocess.CompletedProcess([], 1, "", "Traceback\nValueError: no\n")
        Path(json.loads(arguments[0])["answer"]).write_text(json.dumps(answer))
        return subprocess.CompletedProcess([], 0, "", "")

    return run


def test_a_difference_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer: dict[str, object] = {"lowered": [], "records": []}
    monkeypatch.setattr(module, "run_on_standins", answering(answer))
    assert command(f"output={tmp_path}") == 1
    assert "lowered: main[0]: issued nothing" in capsys.readouterr().out
    assert result(tmp_path)["differences"]


def test_a_contract_that_refuses_is_the_users_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = {"refused": ["npu_moe_distribute_dispatch_v2.H", "512", "1024 to 8192"]}
    monkeypatch.setattr(module, "run_on_standins", answering(refusal))
    assert command(f"output={tmp_path}") == 2
    assert "1024 to 8192" in capsys.readouterr().err


def test_a_lowering_that_fails_says_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_on_standins", answering(None))
    options = DryrunOptions(schedule="recipe_colocated")
    with pytest.raises(LoweringError, match=r"ValueError: no .*lowering.log"):
        main(options, tmp_path)
    assert "ValueError" in (tmp_path / "lowering.log").read_text()
