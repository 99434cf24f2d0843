"""Step graphs of prefill: names, demand by hand, host reads, chunks, micro-batches, engines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_models.hardware import load_hardware
from hardware_models.ops import BulkExchange, GqaAttention, GroupedMatMul, InitRouting, MatMul
from twin.deployment import Quantisation, Role, RoleDeployment
from twin.engine import reference
from twin.engine.compiled import simulate
from twin.graph.build import build_step_graph
from twin.graph.shapes import step_shapes
from twin.graph.step_graph import Op, StepGraph
from twin.models import load_model
from twin.names import HOST_STREAM, LAUNCH, prefill_layer_ops, prefill_outside_ops
from twin.schedule import PrefillPlan, Schedule
from twin.schedule_io import load_schedule
from twin.validate import validate_schedule

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
PREFILL = load_schedule("recipe_prefill")


def changed(
    *,
    chunk: int | None = 4096,
    micro_batches: int = 1,
    quantisation: Quantisation = "w8a8",
    kv_tokens: int = 4096,
    **sizes: int,
) -> Schedule:
    """The shipped prefill with other sizes; parallel sizes by name."""
    roles: dict[Role, RoleDeployment] = {
        "colocated": replace(PREFILL.deployment.attention, **sizes)
    }
    return replace(
        PREFILL,
        workload=replace(PREFILL.workload, kv_tokens=kv_tokens),
        deployment=replace(PREFILL.deployment, roles=roles, quantisation=quantisation),
        moe=replace(PREFILL.moe, chunk_tokens=chunk),
        prefill=PrefillPlan(micro_batches=micro_batches),
    )


def build(schedule: Schedule, layers: int = 2) -> StepGraph:
    validate_schedule(schedule, MODEL, HARDWARE)
    return build_step_graph(schedule, MODEL, HARDWARE, layers=layers)


def step_us(schedule: Schedule, layers: int = 2) -> float:
    return simulate(build(schedule, layers)).makespan_us


def spec_of(graph: StepGraph, name: str) -> object:
    return next(op.spec for op in graph.ops if op.name == f"layer.1.{name}")


def issued(graph: StepGraph) -> list[Op]:
    return [op for op in graph.ops if not op.name.endswith(LAUNCH)]


VARIANTS = {
    "shipped": PREFILL,
    "one_chunk": changed(chunk=None),
    "no_tp": changed(o_proj_tp=1, dense_tp=1, lm_head_tp=1),
    "attention_tp": changed(attention_tp=8),
    "bf16": changed(quantisation="bf16"),
    "micro_batches": changed(micro_batches=2),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_ops_are_the_named_ones_in_the_named_order(name: str) -> None:
    schedule = VARIANTS[name]
    graph = build(schedule, layers=1)
    shapes = step_shapes(schedule, MODEL)
    for part, sequences in enumerate(shapes.micro_batches):
        prefix = "layer.0." if len(shapes.micro_batches) == 1 else f"layer.0.mb{part}."
        inside = [op.name.removeprefix(prefix) for op in issued(graph) if prefix in op.name]
        chunks = len(shapes.moe_chunks(sequences))
        assert inside == list(prefill_layer_ops(schedule.deployment, chunks))
    behind = prefill_outside_ops(schedule.deployment)
    assert [op.name for op in issued(graph)][-len(behind) :] == list(behind)


@pytest.mark.parametrize("name", VARIANTS)
def test_both_engines_agree_to_the_last_bit(name: str) -> None:
    graph = build(VARIANTS[name], layers=3)
    one, other = reference.simulate(graph), simulate(graph)
    assert one.records == other.records
    assert one.makespan_us == other.makespan_us


def test_attention_costs_what_the_heads_of_longcat_cost() -> None:
    """2 prompts of 4096 on 64 heads: 192 MACs a score, 128 its use; whole blocks of 512 count."""
    spec = spec_of(build(PREFILL), "attention.0.attention")
    assert isinstance(spec, GqaAttention)
    demand = spec.demand(HARDWARE, spec.cores(HARDWARE))
    blocks = [math.ceil((row + 1) / 512) for row in range(4096)]
    macs = 2 * 64 * sum(512 * b for b in blocks) * (192 + 128)
    rate = 24 * 4096 * HARDWARE["clock_ghz"] * 1e3 * HARDWARE["gqa_cube_efficiency"]
    assert demand.cube_us == pytest.approx(macs / rate, rel=0.03)
    assert demand.hbm_bytes == 2 * 64 * 4096 * (192 + 128) * 2


def test_matmuls_have_the_rows_of_all_tokens_and_the_head_of_the_last_ones() -> None:
    graph = build(PREFILL)
    shapes = {
        "attention.0.q_a": (8192, 6144, 1536),
        "attention.0.q_b": (8192, 1536, 64 * 192),
        "attention.0.kv_a": (8192, 6144, 576),
        "attention.0.kv_b": (8192, 512, 64 * 256),
        "attention.0.o_proj": (65536, 1024, 6144),
        "moe.router_matmul": (8192, 6144, 768),
    }
    for name, size in shapes.items():
        spec = spec_of(graph, name)
        assert isinstance(spec, MatMul)
        assert (spec.m, spec.k, spec.n) == size
    head = next(op.spec for op in graph.ops if op.name == "lm_head")
    assert isinstance(head, MatMul)
    assert head.m == 2 * 16


def test_copies_of_real_experts_travel_and_are_computed() -> None:
    graph = build(PREFILL)
    routed = spec_of(graph, "moe.chunk0.init_routing")
    assert isinstance(routed, InitRouting)
    assert (routed.rows, routed.copies) == (4096, 4096 * 8)
    there = spec_of(graph, "moe.chunk0.token_all_to_all")
    back = spec_of(graph, "moe.chunk0.back_all_to_all")
    assert isinstance(there, BulkExchange)
    assert isinstance(back, BulkExchange)
    assert there.bytes == 4096 * 8 * (6144 + 4)
    assert back.bytes == 4096 * 8 * 6144 * 2
    experts = spec_of(graph, "moe.chunk0.gmm1")
    assert isinstance(experts, GroupedMatMul)
    assert (experts.rows, experts.active_experts) == (4096 * 8, 16)


def test_the_host_stops_at_every_chunk_and_the_die_runs_dry() -> None:
    graph = build(PREFILL, layers=1)
    by_name = {op.name: op for op in graph.ops}
    records = simulate(graph).records
    for chunk in ("chunk0", "chunk1"):
        counts = by_name[f"layer.0.moe.{chunk}.count_all_to_all"]
        read = by_name[f"layer.0.moe.{chunk}.read_counts"]
        tokens = by_name[f"layer.0.moe.{chunk}.token_all_to_all"]
        assert read.stream == HOST_STREAM
        spent_us = HARDWARE["host_read_us"] + HARDWARE["launch_host_hccl_us"]
        began, ended = records[tokens.index].start_us, records[counts.index].end_us
        assert began - ended == pytest.approx(spent_us, abs=1e-6)


def test_the_host_launches_every_op_of_the_die_once() -> None:
    graph = build(VARIANTS["micro_batches"])
    launches = [op.name for op in graph.ops if op.name.endswith(LAUNCH)]
    on_die = [op.name + LAUNCH for op in graph.ops if op.stream != HOST_STREAM]
    assert launches == on_die


def test_chunks_cover_all_rows_and_cost_launches() -> None:
    graphs = {chunk: build(changed(chunk=chunk), layers=1) for chunk in (None, 4096, 1000)}
    gmm = {
        chunk: [op.spec for op in graph.ops if op.name.endswith(".gmm1")]
        for chunk, graph in graphs.items()
    }
    assert {chunk: len(specs) for chunk, specs in gmm.items()} == {None: 1, 4096: 2, 1000: 9}
    for specs in gmm.values():
        assert sum(s.rows for s in specs if isinstance(s, GroupedMatMul)) == 8192 * 8
    assert len(graphs[1000].ops) - len(graphs[None].ops) == 8 * (11 + 10)
    assert step_us(changed(chunk=1000)) > step_us(changed(chunk=None))


def test_micro_batches_exchange_while_others_compute() -> None:
    graph = build(VARIANTS["micro_batches"])
    records = simulate(graph).records

    def times(name: str) -> tuple[float, float]:
        record = records[next(op.index for op in graph.ops if op.name == name)]
        return record.start_us, record.end_us

    # o_proj takes no vector cores, and the exchange no cube cores.
    begin, end = times("layer.1.mb1.attention.0.all_to_all")
    start, stop = times("layer.1.mb0.attention.0.o_proj")
    assert max(begin, start) < min(end, stop)
    assert step_us(changed(micro_batches=2)) < step_us(PREFILL)
    assert {op.stream for op in graph.ops} == {"main", "link", HOST_STREAM}
    assert {op.stream for op in build(PREFILL).ops} == {"main", HOST_STREAM}


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(256, 6000),
    st.sampled_from([None, 512, 4096]),
    st.sampled_from([1, 2]),
)
@settings(max_examples=12)
def test_longer_prompts_are_slower_and_no_step_beats_its_resources(
    tp: int, tokens: int, chunk: int | None, micro_batches: int
) -> None:
    def with_tokens(kv_tokens: int) -> Schedule:
        return changed(
            chunk=chunk,
            micro_batches=micro_batches,
            kv_tokens=kv_tokens,
            dense_tp=tp,
            o_proj_tp=tp,
        )

    graph = build(with_tokens(tokens), layers=1)
    simulated_us = simulate(graph).makespan_us
    demands = [op.demand for op in graph.ops]
    bytes_us = sum(d.hbm_bytes + sum(r.bytes for r in d.weights) for d in demands) / (
        HARDWARE["hbm_read_gbps"] * 1e3
    )
    for bound_us in (sum(d.cube_us for d in demands), bytes_us):
        assert simulated_us >= bound_us
    assert simulated_us < step_us(with_tokens(2 * tokens), layers=1)
