"""Lowering small steps on the real wheel: every knob changes what the hardware is told."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from schedule_fields import leaves, values
from small import APART, SERVED_BY_ONE_GRAPH, SMALL, VARIANTS, bases

from hardware_models.ops.vector_transfer import FILL_CALLS
from runtime_npu.standins.process import run_on_standins
from twin.schedule import Schedule

STAGE_NAME = "name of the first stage"
# One or two of each kind; the nightly run takes all.
FEW = {
    "eager": ("base", "no link stream", "decode", "ffn of 2:1"),
    "ge_graph": ("base", "cores of moe", "ffn of 2:1 in two micro-batches", "ffn of direct"),
    "npugraph_ex": (
        "base",
        "place of a prefetch",
        "attention of 2:1 in two micro-batches",
        "attention of direct",
    ),
}


def lowered(
    mode: str, names: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(here), str(here.parent))))
    path, scratch = folder / "answers.json", folder / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    done = run_on_standins("child_knobs", [mode, str(path), *names])
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []
    answers: dict[str, Any] = json.loads(path.read_text())
    return answers


def same(mode: str) -> Sequence[str]:
    """Steps that lower to what the base does."""
    # A stage's name is that of its scopes, which only ge_graph has.
    return SERVED_BY_ONE_GRAPH if mode == "ge_graph" else (*SERVED_BY_ONE_GRAPH, STAGE_NAME)


def test_every_field_of_a_schedule_is_lowered_or_has_no_part_in_it() -> None:
    # Each of these has steps of its own.
    changed = {"deployment.graph_mode", "workload.phase"}
    for mode, variants in VARIANTS.items():
        for name, (schedule, _) in variants.items():
            if name not in same(mode):
                changed |= min((differing(schedule, base) for base in bases(mode)), key=len)
    fields = set(leaves(Schedule))
    assert set(APART) <= fields
    assert fields - set(APART) <= changed


def differing(one: Schedule, other: Schedule) -> set[str]:
    """The fields in which two schedules differ."""
    return {field for field, _ in set(values(one)) ^ set(values(other))}


def check(answers: dict[str, Any], mode: str, names: Sequence[str]) -> None:
    base = answers["base"]["ops"]
    for name in names:
        assert answers[name]["differences"] == [], name
        is_base = name in ("base", *same(mode))
        assert (answers[name]["ops"] == base) == is_base, name
    last, differences = f"layer.{SMALL.num_layers - 1}", answers["no join"]["differences"]
    joins = {"eager": f"{last}.mb1.moe.back_all_to_all"}
    join = f"the step graph has ('{joins.get(mode, f'{last}.moe.combine')}',"
    lowered, issued = (
        [line for line in differences if join in line and line.startswith(side)]
        for side in ("lowered", "issued")
    )
    # In ge_graph the edges of the graph join the streams, whatever the model says; in eager
    # the model does say it.
    assert len(lowered) == (0 if mode == "ge_graph" else 1)
    assert len(issued) == (0 if mode == "eager" else 1)
    early = [line for line in differences if "without waiting for it" in line]
    assert len(early) >= (0 if mode == "ge_graph" else 1)
    if mode == "npugraph_ex":
        assert (
            f"lowered: {last}.add: reads {last}.moe.combine of moe without waiting for it" in early
        )
    read = {
        "eager": f"{last}.mb1.moe.token_all_to_all: reads {last}.mb1.moe.init_routing of main",
        # The last pass but one: the last one's receive may get its memory.
        "npugraph_ex": f"{last}.mb0.add: reads {last}.mb0.afd.recv of link",
    }
    if mode in read:
        kept = answers["not kept"]
        assert f"lowered: {read[mode]}, whose memory" in " ".join(kept)
        assert all("whose memory is not kept for" in line for line in kept)
    assert answers["refused"] == ["npu_moe_distribute_dispatch_v2.H (columns of x)", 512]


@pytest.mark.usefixtures("standins")
def test_prefill_and_eager_decode_are_launched_as_scheduled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = lowered("eager", FEW["eager"], tmp_path, monkeypatch)
    check(answers, "eager", FEW["eager"])
    ops = {op["name"]: op for op in answers["base"]["ops"]}
    there = ops["layer.0.mb0.moe.chunk0.token_all_to_all"]
    assert (there["stream"], there["calls"], there["group"]) == (
        "link",
        ["HcclAlltoAllV"],
        "ranks 0-3",
    )
    assert there["waits"] == ["layer.0.mb0.moe.chunk0.read_counts"]
    read = ops["layer.0.mb0.moe.chunk0.read_counts"]
    assert (read["stream"], read["calls"][-1]) == ("host", "synchronize")
    rows = ops["layer.0.mb0.moe.chunk0.init_routing"]
    assert (rows["stream"], rows["calls"][0]) == ("main", "aclnnMoeInitRoutingV3")
    ops = {op["name"]: op for op in answers["decode"]["ops"]}
    assert ops["layer.0.moe.dispatch"]["group"] == "ranks 0-3"
    ops = {op["name"]: op for op in answers["ffn of 2:1"]["ops"]}
    assert (ops["layer.0.afd.send.1"]["calls"], ops["layer.0.afd.send.1"]["group"]) == (
        ["HcclSend"],
        "rank 3",
    )


@pytest.mark.usefixtures("standins")
@pytest.mark.parametrize("mode", ["ge_graph", "npugraph_ex"])
def test_a_few_knobs_lower_as_scheduled(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = lowered(mode, FEW[mode], tmp_path, monkeypatch)
    check(answers, mode, FEW[mode])
    ops = {op["name"]: op for op in answers["base"]["ops"]}
    dispatch = ops["layer.0.moe.dispatch"]
    assert (dispatch["stream"], dispatch["aic"], dispatch["aiv"]) == ("moe", 8, 16)
    assert dispatch["group"] == "ranks 0-3"
    assert ops["layer.0.attention.0.all_to_all"]["group"] == "ranks 0-1"
    assert ops["layer.0.prefetch.moe.router"]["prefetch_bytes"] == 1000
    # All of kv_a, of which ten times as much was asked for.
    whole = SMALL.kv_width * SMALL.hidden_size * 2
    assert ops["layer.0.prefetch.attention.1.kv_a"]["prefetch_bytes"] == whole
    assert ops["layer.1.add"]["waits"] == ["layer.1.moe.combine"]
    expected = {
        "ge_graph": ("layer.0.second.moe", ["MoeDistributeDispatchV2"]),
        "npugraph_ex": (None, ["npu.npu_moe_distribute_dispatch_v2"]),
    }
    assert (dispatch["scope"], dispatch["calls"]) == expected[mode]
    direct = {"ge_graph": "ffn of direct", "npugraph_ex": "attention of direct"}[mode]
    check_direct({op["name"]: op for op in answers[direct]["ops"]}, mode)
    # One graph serves every step: captured calls take their lengths as inputs of the graph.
    assert answers["kinds of KV lengths"] == ([] if mode == "ge_graph" else ["Node"])


def check_direct(ops: dict[str, Any], mode: str) -> None:
    """What a die of either role is told of one pass's direct transfers."""
    wait, receive, send = (ops[f"layer.0.afd.{op}"] for op in ("wait", "recv", "send"))
    for op in (wait, receive, send):
        assert (op["stream"], op["aiv"]) == ("link", 8)
    assert (wait["group"], receive["group"], send["group"]) == (None, None, "ranks 0-7")
    if mode == "ge_graph":
        assert wait["calls"][-1] == "FfnWorkerScheduler"
        assert receive["calls"][0] == "FfnWorkerBatching"
        assert send["calls"] == ["FFNToAttention"]
        assert ops["layer.0.moe.gmm1"]["waits"] == ["layer.0.afd.recv"]
        return
    assert wait["calls"] == ["npu.attention_worker_scheduler"]
    assert receive["calls"] == ["npu.npu_attention_worker_combine", "aten.addcmul"]
    assert send["calls"] == ["npu.npu_attention_to_ffn"]
    assert send["waits"] == ["layer.0.moe.fill"]
    assert len(ops["layer.0.moe.fill"]["calls"]) == FILL_CALLS


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
@pytest.mark.parametrize("mode", VARIANTS)
def test_every_knob_changes_what_is_lowered(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(VARIANTS[mode])
    answers = lowered(mode, names, tmp_path, monkeypatch)
    check(answers, mode, names)
