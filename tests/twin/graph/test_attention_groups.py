"""StepGraphs whose attention groups span dies: split KV cache (kvp) or heads (attention_tp)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.hardware import load_hardware
from hardware_models.ops import (
    AttentionUpdate,
    BatchMatMul,
    Collective,
    Dispatch,
    GroupedMatMul,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    QuantMatMul,
    RowOp,
    Send,
)
from twin.deployment import Afd
from twin.engine import reference
from twin.engine.compiled import simulate
from twin.engine.options import EngineOptions
from twin.graph.build import build_step_graph
from twin.graph.shapes import local_kv_tokens, step_shapes
from twin.graph.step_graph import Op, StepGraph
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.validate import validate_schedule

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
LONG = load_schedule("recipe_long_context")


def with_sizes(schedule: Schedule, **sizes: int) -> Schedule:
    deployment = schedule.deployment
    roles = {**deployment.roles, deployment.attention_role: replace(deployment.attention, **sizes)}
    return replace(schedule, deployment=replace(deployment, roles=roles), prefetch=())


def with_workload(schedule: Schedule, **changes: object) -> Schedule:
    return replace(schedule, workload=replace(schedule.workload, **changes))


TP = with_sizes(load_schedule("recipe_colocated"), attention_tp=8)
AFD_TP = with_sizes(load_schedule("recipe_afd"), attention_tp=8)
AFD_KVP = with_sizes(
    with_workload(load_schedule("recipe_afd"), next_n=0, acceptance=0.0, kv_tokens=65536), kvp=8
)
AFD_PARTS = replace(AFD_KVP, deployment=replace(AFD_KVP.deployment, afd=Afd(micro_batches=2)))
GROUPED = {"kvp": LONG, "tp": TP, "afd_tp": AFD_TP, "afd_kvp": AFD_KVP, "afd_kvp_2": AFD_PARTS}
every_grouped = pytest.mark.parametrize("name", GROUPED)


def build(schedule: Schedule, layers: int | None = 2) -> StepGraph:
    validate_schedule(schedule, MODEL, HARDWARE)
    return build_step_graph(schedule, MODEL, HARDWARE, layers=layers)


def specs(schedule: Schedule, layers: int | None = 2) -> dict[str, object]:
    return {op.name: op.spec for op in build(schedule, layers).ops if op.die == 0}


def test_a_split_cache_is_attended_in_part_and_merged_over_the_group() -> None:
    """131071 tokens over 8 dies: the fullest holds 16384; one row a group, 64 heads of 128."""
    found = specs(LONG)

    def at(op: str) -> object:
        return found[f"layer.1.attention.0.{op}"]

    assert at("attention") == MlaDecodeAttention(1, 1, 64, 16384, 512, 64, "bf16")
    assert isinstance(at("uv"), BatchMatMul)
    assert at("all_to_all") == Collective("all_to_all", 8, 64 * 128 * 2)
    assert at("lse_all_to_all") == Collective("all_to_all", 8, 64 * 4)
    assert at("merge") == AttentionUpdate(8, 8, 128, "bf16")
    assert at("o_proj") == MatMul(1, 1024, 6144, "bf16", "layer.1.attention.0.o_proj")
    assert at("all_reduce") == Collective("all_reduce", 8, 6144 * 2)
    assert at("post_norm") == RowOp("add_rms_norm", 1, 6144)


def test_dense_of_replicated_rows_gathers_none_and_sums_behind() -> None:
    found = specs(with_workload(LONG, global_batch=12))
    assert "layer.1.dense.0.all_gather" not in found
    gate_up = found["layer.1.dense.0.gate_up"]
    assert gate_up == QuantMatMul(3, 6144, 2 * 12288 // 8, "layer.1.dense.0.gate_up", "int32")
    assert found["layer.1.dense.0.all_reduce"] == Collective("all_reduce", 8, 3 * 6144 * 2)


def test_every_die_of_a_kvp_group_dispatches_its_rows_and_experts_wake_once() -> None:
    """Published: EP32, kvp 8, batch 4 wakes about 1 of 16 experts a die under uniform routing."""
    found = specs(LONG)
    assert found["layer.1.moe.dispatch"] == Dispatch(8.0, 32, 6144)
    gmm = found["layer.1.moe.gmm1"]
    assert isinstance(gmm, GroupedMatMul)
    assert gmm.rows == 32 * 1 * 8 / 32
    assert gmm.active_experts == pytest.approx(16 * (1 - (1 - 1 / 512) ** (4 * 8)))
    balanced = step_shapes(with_workload(LONG, expert_load="balanced"), MODEL)
    assert balanced.active_experts(1) == 1.0


def test_split_heads_gather_the_group_s_rows_before_the_prolog() -> None:
    """512 sequences in 16 groups: 32 of 3 rows each, 12 rows held by each of 8 dies."""
    found = specs(TP)

    def at(op: str) -> object:
        return found[f"layer.1.attention.0.{op}"]

    assert at("input_norm") == RowOp("rms_norm", 12, 6144)
    assert at("all_gather") == Collective("all_gather", 8, 12 * 6144 * 2)
    prolog = at("prolog")
    assert isinstance(prolog, MlaProlog)
    assert (prolog.rows, prolog.heads) == (96, 8)
    assert at("attention") == MlaDecodeAttention(32, 3, 8, 4608, 512, 64, "bf16")
    assert at("o_proj") == MatMul(96, 1024, 6144, "bf16", "layer.1.attention.0.o_proj")
    assert at("reduce_scatter") == Collective("reduce_scatter", 8, 12 * 6144 * 2)
    assert at("post_norm") == RowOp("add_rms_norm", 12, 6144)
    assert found["mtp.0.attention.all_gather"] == at("all_gather")
    data_parallel = specs(with_sizes(TP, attention_tp=1))
    for op in ("dense.0.gate_up", "moe.dispatch", "moe.gmm1", "add"):
        assert found[f"layer.1.{op}"] == data_parallel[f"layer.1.{op}"]


def test_rows_that_do_not_divide_are_padded_to_equal_numbers() -> None:
    shapes = step_shapes(with_workload(TP, global_batch=16), MODEL)
    assert shapes.sequences == 1
    assert (shapes.rows(1), shapes.attention_rows(1)) == (1, 8)


@given(kv_tokens=st.integers(0, 1000), kvp=st.integers(1, 16))
def test_local_lengths_count_the_positions_dealt_round_robin(kv_tokens: int, kvp: int) -> None:
    held = [len([p for p in range(kv_tokens) if p % kvp == rank]) for rank in range(kvp)]
    assert [local_kv_tokens(kv_tokens, kvp, rank) for rank in range(kvp)] == held
    assert max(held) == held[0]


def test_an_attention_die_of_afd_sends_what_it_holds() -> None:
    """64 attention dies, batch 256: 8 groups of 32 sequences, one row each or three (TP)."""
    kvp, tp = specs(AFD_KVP), specs(AFD_TP)
    assert kvp["layer.1.afd.send"] == Send(32 * 6144 * 2)
    assert tp["layer.1.afd.send"] == Send(32 * 3 // 8 * 6144 * 2)


def bounds(graph: StepGraph) -> dict[str, float]:
    """Least step by each rate: what every stream and resource of a die must do at least."""
    least: dict[str, float] = defaultdict(float)
    resources = {"sdma_bytes": "sdma_gbps", "link_bytes": "link_gbps"}
    for op in graph.ops:
        body = max(op.demand.cube_us, op.demand.vector_us, op.demand.latency_us)
        least[f"stream {op.die} {op.stream}"] += op.demand.head_us + body
        least[f"hbm {op.die}"] += op.demand.hbm_bytes / HARDWARE["hbm_read_gbps"] / 1e3
        for field, rate in resources.items():
            least[f"{field} {op.die}"] += getattr(op.demand, field) / HARDWARE[rate] / 1e3
    return dict(least)


def critical_path(graph: StepGraph) -> float:
    """The longest chain of deps and stream order, each op at its head and body alone."""
    ends: dict[int, float] = {}
    last: dict[tuple[int, str], float] = defaultdict(float)
    for op in graph.ops:
        body = max(op.demand.cube_us, op.demand.vector_us, op.demand.latency_us)
        start = max([last[op.die, op.stream], *(ends.get(dep, 0.0) for dep in op.deps)])
        ends[op.index] = last[op.die, op.stream] = start + op.demand.head_us + body
    return max(ends.values())


@every_grouped
def test_no_bound_lies_above_the_simulated_step(name: str) -> None:
    graph = build(GROUPED[name], layers=4)
    step_us = reference.simulate(graph, EngineOptions()).makespan_us
    assert critical_path(graph) <= step_us + 1e-6
    for what, least_us in bounds(graph).items():
        assert least_us <= step_us + 1e-6, what


@every_grouped
@pytest.mark.parametrize("unfinished", ["continues", "stops"])
def test_both_engines_agree_to_the_last_bit(name: str, unfinished: str) -> None:
    graph = build(GROUPED[name], layers=3)
    options = EngineOptions(unfinished_prefetch=unfinished)  # type: ignore[arg-type]
    assert simulate(graph, options).records == reference.simulate(graph, options).records


def one_sequence_a_group(kvp: int) -> Schedule:
    """32 dies; each group serves one sequence of 131071 tokens."""
    sizes = with_sizes(LONG, kvp=kvp, o_proj_tp=kvp, dense_tp=kvp)
    return with_workload(sizes, global_batch=32 // kvp)


def spent(graph: StepGraph, kind: str) -> float:
    records = reference.simulate(graph, EngineOptions()).records
    return sum(records[op.index].end_us - records[op.index].start_us for op in kind_of(graph, kind))


def kind_of(graph: StepGraph, kind: str) -> list[Op]:
    return [op for op in graph.ops if op.kind == kind and op.name.startswith("layer.")]


def test_more_parts_make_attention_shorter_and_communication_longer() -> None:
    graphs = [build(one_sequence_a_group(kvp)) for kvp in (1, 2, 4, 8, 16)]
    attention = [spent(graph, "mla_attention") for graph in graphs]
    exchange = [spent(graph, "collective") for graph in graphs]
    merge = [spent(graph, "attention_update") for graph in graphs]
    assert attention == sorted(attention, reverse=True)
    assert len(set(attention)) == len(attention)
    assert exchange[0] == merge[0] == 0.0
    assert exchange == sorted(exchange)
    assert len(set(exchange)) == len(exchange)
