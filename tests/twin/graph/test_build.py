"""StepGraphs of the shipped schedules: names, order, cores, prefetches, joins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_models.hardware import load_hardware
from hardware_models.ops import Collective, GroupedMatMul, PrefetchWeight
from twin.deployment import Afd
from twin.graph.build import build_step_graph
from twin.graph.shapes import step_shapes
from twin.graph.step_graph import Op, StepGraph
from twin.models import load_model
from twin.schedule import CoreLimit, Prefetch, Schedule, Stage
from twin.schedule_io import load_schedule

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
COLOCATED = load_schedule("recipe_colocated")
AFD = load_schedule("recipe_afd")

ATTENTION = [
    "input_norm",
    "prolog",
    "attention",
    "uv",
    "all_to_all",
    "o_proj",
    "reduce_scatter",
    "post_norm",
]
DENSE = ["all_gather", "quant", "gate_up", "swiglu", "down", "reduce_scatter"]
MOE = ["cast", "router_matmul", "topk", "dispatch", "gmm1", "swiglu", "gmm2", "combine"]


def build(schedule: Schedule, layers: int | None = 3) -> StepGraph:
    return build_step_graph(schedule, MODEL, HARDWARE, layers=layers)


def stream(graph: StepGraph, name: str, prefix: str, die: int = 0) -> list[str]:
    return [
        op.name.removeprefix(prefix)
        for op in graph.ops
        if op.die == die and op.stream == name and op.name.startswith(prefix)
    ]


def by_name(graph: StepGraph, name: str, die: int = 0) -> Op:
    return next(op for op in graph.ops if op.name == name and op.die == die)


def block(name: str, ops: list[str]) -> list[str]:
    return [f"{name}.{op}" for op in ops]


def with_ratio(ratio: int, micro_batches: int = 1, batch: int = 512) -> Schedule:
    roles = dict(AFD.deployment.roles)
    total = 128
    ffn = total // (ratio + 1)
    roles["ffn"] = replace(roles["ffn"], dies=ffn, ep=ffn)
    roles["attention"] = replace(roles["attention"], dies=total - ffn)
    deployment = replace(AFD.deployment, roles=roles, afd=Afd(micro_batches=micro_batches))
    workload = replace(AFD.workload, global_batch=batch)
    return replace(AFD, deployment=deployment, workload=workload)


def test_a_colocated_layer_holds_the_recipe_s_ops_in_order_on_two_streams() -> None:
    graph = build(COLOCATED)
    assert stream(graph, "main", "layer.1.") == [
        *block("attention.0", ATTENTION),
        *block("dense.0", DENSE),
        *block("attention.1", ATTENTION),
        *block("dense.1", DENSE),
        "add",
    ]
    assert stream(graph, "moe", "layer.1.") == block("moe", MOE)


def test_all_28_layers_and_two_mtp_passes_are_there() -> None:
    graph = build(COLOCATED, layers=None)
    assert len(graph.period_marks) == 28
    outside = [op.name for op in graph.ops if not op.name.startswith("layer.")]
    assert outside[0] == "embed"
    head = ["final_norm", "lm_head_all_gather", "lm_head", "lm_head_all_to_all", "sample"]
    assert outside[1:6] == head
    for number in (0, 1):
        names = [name for name in outside if name.startswith(f"mtp.{number}.")]
        assert names[:3] == [f"mtp.{number}.{op}" for op in ("embed", "norms", "eh_proj")]
        assert names[-1] == f"mtp.{number}.sample"
        assert f"mtp.{number}.dense.gate_up" in names


def test_core_limits_hold_in_stage_2_and_not_in_stage_1() -> None:
    graph = build(COLOCATED)
    assert by_name(graph, "layer.1.attention.0.prolog").cores.aic == 24
    assert by_name(graph, "layer.1.attention.1.prolog").cores.aic == 16
    assert by_name(graph, "layer.1.moe.gmm1").cores.aic == 8
    assert by_name(graph, "layer.1.moe.dispatch").cores.aiv == 16
    assert by_name(graph, "mtp.0.eh_proj").cores.aic == 24


def test_the_join_waits_for_both_streams() -> None:
    graph = build(COLOCATED)
    add = by_name(graph, "layer.1.add")
    waits_for = {graph.ops[i].name for i in add.deps}
    assert waits_for == {"layer.1.dense.1.reduce_scatter", "layer.1.moe.combine"}


def test_super_kernel_scopes_remove_gaps_only_inside() -> None:
    graph = build(COLOCATED)
    inside = by_name(graph, "layer.1.attention.0.prolog")
    entering = by_name(graph, "layer.1.attention.0.input_norm")
    assert inside.scope == "layer.1.stage1"
    assert inside.gap_us == HARDWARE["launch_gap_super_kernel_us"]
    assert entering.gap_us == HARDWARE["launch_gap_graph_us"]
    bare = build(replace(COLOCATED, super_kernel=()))
    assert by_name(bare, "layer.1.attention.0.prolog").gap_us == HARDWARE["launch_gap_graph_us"]


def test_prefetches_hang_on_their_op_and_fill_what_the_consumer_reads() -> None:
    graph = build(COLOCATED)
    prefetch = by_name(graph, "layer.1.prefetch.dense.0.down")
    assert [graph.ops[i].name for i in prefetch.deps] == ["layer.1.dense.0.all_gather"]
    assert prefetch.demand.fills is not None
    reads = by_name(graph, "layer.1.dense.0.down").demand.weights
    assert prefetch.demand.fills.weight in {read.weight for read in reads}
    crossing = by_name(graph, "layer.1.prefetch.next.attention.0.q_a")
    assert crossing.demand.fills is not None
    assert crossing.demand.fills.weight == "layer.2.attention.0.q_a"


def test_nothing_is_prefetched_for_a_layer_behind_the_last() -> None:
    graph = build(COLOCATED)
    assert not [op for op in graph.ops if op.name.startswith("layer.2.prefetch.next.")]
    assert [op for op in graph.ops if op.name.startswith("layer.1.prefetch.next.")]


def test_every_prefetched_weight_is_read_later_on_the_same_die() -> None:
    for schedule in (COLOCATED, AFD, with_ratio(3), with_ratio(1, micro_batches=2)):
        graph = build(schedule)
        for op in graph.ops:
            if isinstance(op.spec, PrefetchWeight):
                readers = [
                    o.index
                    for o in graph.ops
                    if o.die == op.die and any(r.weight == op.spec.weight for r in o.demand.weights)
                ]
                assert readers
                assert all(reader > op.index for reader in readers)


def test_a_prefetch_above_the_weight_is_clipped_and_both_sizes_recorded() -> None:
    graph = build(COLOCATED)
    spec = by_name(graph, "layer.1.prefetch.attention.1.kv_a").spec
    assert isinstance(spec, PrefetchWeight)
    assert (spec.requested_bytes, spec.bytes) == (7340032, 7077888)
    assert ("layer.1.attention.1.kv_a", 7340032, 7077888) in graph.clipped


def test_a_serial_schedule_runs_everything_on_one_stream() -> None:
    stage = Stage(name="serial", streams={"main": CoreLimit()})
    serial = replace(COLOCATED, stages=(stage,), super_kernel=("serial",))
    graph = build(serial)
    names = stream(graph, "main", "layer.1.")
    place = names.index("attention.0.post_norm")
    assert names[place + 1 : place + 9] == block("moe", MOE)
    assert {op.stream for op in graph.ops} == {"main", "prefetch"}


def test_a_stage_boundary_elsewhere_moves_the_core_limit() -> None:
    first, second = COLOCATED.stages
    moved = replace(COLOCATED, stages=(replace(first, ends_after="dense.0.down"), second))
    graph = build(moved)
    assert by_name(graph, "layer.1.dense.0.gate_up").cores.aic == 24
    assert by_name(graph, "layer.1.dense.0.reduce_scatter").cores.aiv == 32


def test_afd_pairs_send_u_and_receive_before_the_join() -> None:
    graph = build(AFD)
    assert [die.role for die in graph.dies] == ["attention", "ffn"]
    assert stream(graph, "link", "layer.1.", 0) == ["afd.send", "afd.recv"]
    assert stream(graph, "link", "layer.1.", 1) == ["afd.recv", "afd.send"]
    assert stream(graph, "main", "layer.1.", 1) == block("moe", MOE)
    send = by_name(graph, "layer.1.afd.send", 0)
    assert [graph.ops[i].name for i in send.deps] == ["layer.1.attention.0.post_norm"]
    assert send.demand.link_bytes == 12 * 6144 * 2


def test_with_a_ratio_one_ffn_die_serves_its_attention_dies() -> None:
    graph = build(with_ratio(3))
    assert [die.role for die in graph.dies] == ["attention"] * 3 + ["ffn"]
    cast = by_name(graph, "layer.1.moe.cast", 3)
    assert {graph.ops[i].name for i in cast.deps} == {f"layer.1.afd.recv.{i}" for i in range(3)}
    for die in range(3):
        recv = by_name(graph, "layer.1.afd.recv", die)
        assert [graph.ops[i].name for i in recv.deps] == [f"layer.1.afd.send.{die}"]


def test_micro_batches_overlap_before_their_join() -> None:
    graph = build(with_ratio(1, micro_batches=2))
    names = stream(graph, "main", "layer.")
    first_add = names.index("0.mb0.add")
    assert first_add > names.index("0.mb1.dense.1.reduce_scatter")
    assert names[first_add + 1] == "1.mb0.attention.0.input_norm"
    gmm = by_name(graph, "layer.1.mb0.moe.gmm1", 1).spec
    assert isinstance(gmm, GroupedMatMul)
    assert gmm.rows == 4 * 3 * 64 * 8 / 64


def test_rows_per_die_follow_batch_ratio_and_topk() -> None:
    assert step_shapes(COLOCATED, MODEL).sequences == 4
    assert step_shapes(COLOCATED, MODEL).expert_rows(4) == 12 * 8
    assert step_shapes(with_ratio(3), MODEL).sequences == 6
    graph = build(COLOCATED)
    gather = by_name(graph, "layer.1.dense.0.all_gather").spec
    assert isinstance(gather, Collective)
    assert gather.payload_bytes == 12 * 6144 * 2


def test_active_experts_follow_the_load() -> None:
    few = replace(COLOCATED, workload=replace(COLOCATED.workload, global_batch=128, next_n=0))
    even = step_shapes(few, MODEL)
    assert even.active_experts(1) == 4
    uniform = replace(few, workload=replace(few.workload, expert_load="uniform"))
    expected = 4 * (1 - (1 - 1 / 512) ** (128 * 8))
    assert step_shapes(uniform, MODEL).active_experts(1) == pytest.approx(expected)


def test_weights_outside_the_layers_are_prefetched_in_the_last_layer_only() -> None:
    more = replace(
        COLOCATED,
        prefetch=(Prefetch(weight="lm_head", after="dense.1.down", bytes=1 << 24),),
    )
    graph = build(more)
    assert [op.name for op in graph.ops if isinstance(op.spec, PrefetchWeight)] == [
        "layer.2.prefetch.lm_head"
    ]
