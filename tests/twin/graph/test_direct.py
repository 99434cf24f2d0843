"""AFD over direct transfers: attention dies route, copies go straight to the experts' dies."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from transports import on_transport

from hardware_models.demand import Cores
from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from hardware_models.ops import ExpertReceive, ExpertSend, GroupedMatMul
from hardware_models.ops.vector_transfer import ExpertWay
from twin.cluster.build import build_cluster
from twin.deployment import Afd
from twin.engine import reference
from twin.engine.compiled import simulate
from twin.graph.build import build_step_graph
from twin.graph.shapes import step_shapes
from twin.graph.step_graph import Op, StepGraph
from twin.memory import MIB, memory_ledger
from twin.models import load_model
from twin.schedule import Prefetch, Schedule
from twin.validate import validate_schedule
from twin.weights import role_weights

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")
DIRECT = on_transport("direct")


def build(schedule: Schedule, layers: int = 3) -> StepGraph:
    validate_schedule(schedule, MODEL, HARDWARE)
    return build_step_graph(schedule, MODEL, HARDWARE, layers=layers)


def by_name(graph: StepGraph, name: str, role: str) -> Op:
    (op,) = (o for o in graph.ops if o.name == name and graph.dies[o.die].role == role)
    return op


def with_dies(attention: int, ffn: int, batch: int) -> Schedule:
    roles = dict(DIRECT.deployment.roles)
    roles["attention"] = replace(roles["attention"], dies=attention)
    roles["ffn"] = replace(roles["ffn"], dies=ffn, ep=ffn)
    return replace(
        DIRECT,
        deployment=replace(DIRECT.deployment, roles=roles),
        workload=replace(DIRECT.workload, global_batch=batch),
    )


def refused(schedule: Schedule) -> InputError:
    with pytest.raises(InputError) as caught:
        validate_schedule(schedule, MODEL, HARDWARE)
    return caught.value


def test_attention_dies_route_and_ffn_dies_only_compute() -> None:
    graph = build(DIRECT)

    def issued(role: str, stream: str) -> list[str]:
        return [
            op.name.removeprefix("layer.1.")
            for op in graph.ops
            if op.name.startswith("layer.1.")
            and (graph.dies[op.die].role, op.stream) == (role, stream)
        ]

    main = issued("attention", "main")
    routed = main.index("attention.0.post_norm") + 1
    router = ["moe.cast", "moe.router_matmul", "moe.topk", "moe.fill"]
    assert main[routed : routed + 4] == router
    assert issued("attention", "link") == ["afd.send", "afd.wait", "afd.recv"]
    assert issued("ffn", "link") == ["afd.wait", "afd.recv", "afd.send"]
    assert issued("ffn", "main") == ["moe.gmm1", "moe.swiglu", "moe.gmm2"]
    send = by_name(graph, "layer.1.afd.send", "attention")
    assert [graph.ops[dep].name for dep in send.deps] == ["layer.1.moe.fill"]


def test_copies_for_zero_experts_travel_and_are_computed_under_other_ids() -> None:
    """12 rows, top-12 of which 8 are real: fillers make it 144 copies, there and back."""
    graph = build(DIRECT)
    send, back = (by_name(graph, "layer.1.afd.send", role) for role in ("attention", "ffn"))
    assert send.demand.link_bytes == 12 * 12 * 6656
    assert back.demand.link_bytes == 12 * 12 * 12288
    gmm = by_name(graph, "layer.1.moe.gmm1", "ffn").spec
    paired = by_name(build(on_transport("sdma_pairs")), "layer.1.moe.gmm1", "ffn").spec
    assert isinstance(gmm, GroupedMatMul)
    assert isinstance(paired, GroupedMatMul)
    assert (gmm.rows, paired.rows) == (12 * 12, 12 * 8)
    plain = replace(DIRECT.deployment, quantisation="bf16")
    bf16 = by_name(build(replace(DIRECT, deployment=plain)), "layer.1.afd.send", "attention")
    assert bf16.demand.link_bytes == 12 * 12 * 12288


@pytest.mark.parametrize(
    ("attention", "ffn"), [(64, 64), (96, 32), (96, 64), (64, 128), (80, 32), (32, 128)]
)
def test_any_ratio_moves_and_computes_every_copy(attention: int, ffn: int) -> None:
    schedule = with_dies(attention, ffn, 4 * attention)
    shapes = step_shapes(schedule, MODEL)
    copies = attention * 12 * 12
    assert shapes.expert_rows(4) * ffn == pytest.approx(copies)
    graph = build(schedule)
    parts = max(1, attention // ffn)
    assert [die.role for die in graph.dies] == ["attention"] * parts + ["ffn"]
    received = sum(
        op.spec.rows
        for op in graph.ops
        if isinstance(op.spec, ExpertReceive)
        and graph.dies[op.die].role == "ffn"
        and op.name.startswith("layer.1.")
    )
    assert received * ffn == pytest.approx(copies)
    sends = [op.spec for op in graph.ops if isinstance(op.spec, ExpertSend)]
    busiest = max(12 * 12, copies / ffn)
    assert {send.die_rows for send in sends} == {busiest}
    there, back = ({s.rows for s in sends if s.way == way} for way in get_args(ExpertWay))
    # A link carries what the busier of its ends has to move over it; the FFN die sends all.
    assert (there, back) == ({max(12 * 12, copies / ffn / parts)}, {busiest})
    assert simulate(graph).makespan_us > 0


@pytest.mark.parametrize("ratio", [1, 3])
def test_an_ffn_die_tells_one_kernel_of_all_attention_dies(ratio: int) -> None:
    graph = build(on_transport("direct", ratio, 2))
    die = len(graph.dies) - 1
    own = [op for op in graph.ops if op.die == die and op.name.startswith("layer.1.mb0.afd.")]
    assert [op.name.rpartition(".")[2] for op in own] == ["wait", "recv", "send"]
    assert {op.stream for op in own} == {"link"}
    wait, _, send = own
    assert [graph.ops[dep].die for dep in wait.deps] == list(range(ratio))
    waiting = [op for op in graph.ops if send.index in op.deps]
    assert [op.die for op in waiting] == list(range(ratio))
    # With one attention die the link to it is loaded at both ends.
    assert send.peer == (0 if ratio == 1 else None)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("ratio", [1, 3])
def test_engines_agree(ratio: int, micro_batches: int) -> None:
    graph = build(on_transport("direct", ratio, micro_batches))
    assert simulate(graph).records == reference.simulate(graph).records


def test_transfers_hold_vector_cores_and_waiting_holds_none() -> None:
    for op in build(DIRECT).ops:
        if op.stream == "link":
            assert op.cores == (Cores(0, 0) if op.name.endswith(".wait") else Cores(0, 8))


def test_a_cluster_needs_a_whole_ratio() -> None:
    schedule = with_dies(96, 64, 384)
    validate_schedule(schedule, MODEL, HARDWARE)
    with pytest.raises(InputError) as caught:
        build_cluster(schedule, MODEL, HARDWARE, layers=1)
    assert (caught.value.field, caught.value.value) == ("deployment.roles", "96:64")


def test_the_router_lies_where_it_is_used() -> None:
    def names(schedule: Schedule, role: str) -> set[str]:
        assert role in ("attention", "ffn")
        items = role_weights(MODEL, schedule.deployment, "ffn" if role == "ffn" else "attention")
        return {item.name for item in items if item.name.startswith("moe.")}

    gate = {"moe.router", "moe.correction_bias"}
    experts = {"moe.w13", "moe.w2"}
    assert (names(DIRECT, "attention"), names(DIRECT, "ffn")) == (gate, experts)
    paired = on_transport("sdma_pairs")
    assert (names(paired, "attention"), names(paired, "ffn")) == (set(), gate | experts)


def test_windows_lie_beside_the_buffers_of_two_communicators() -> None:
    """64 dies x 12 rows x 12 copies: a flag and a slot of 6656 B for each, on every FFN die."""
    ledger = memory_ledger(DIRECT, MODEL, HARDWARE)
    buffers = 2 * 200 * MIB * HARDWARE["hccl_buffers_per_communicator"]
    flags = 64 * (2 + 144) * 4
    assert ledger["ffn"].hccl_bytes == buffers + 64 * 144 * 6656 + flags
    own = [ledger[role].hccl_bytes for role in ("attention", "ffn")]
    paired = memory_ledger(on_transport("sdma_pairs"), MODEL, HARDWARE)
    assert own[0] - paired["attention"].hccl_bytes == 144 * (4 + 12288) + (-144 * 4) % 512


def test_experts_have_room_for_every_copy_that_could_come() -> None:
    """64 x 12 rows x 12 choices: int8 rows beside the int32 sums of gate and up."""
    ledger = memory_ledger(DIRECT, MODEL, HARDWARE)["ffn"]
    assert ledger.activation_bytes == 64 * 12 * 12 * (6144 + 4 * 4096)


def test_one_ffn_die_exchanges_with_no_other() -> None:
    one = with_dies(16, 1, 64)
    few = replace(MODEL, n_routed_experts=32, zero_expert_num=16, num_layers=1)
    validate_schedule(one, few, HARDWARE)
    paired = replace(one, deployment=replace(one.deployment, afd=Afd(transport="sdma_pairs")))
    with pytest.raises(InputError, match="2 to 768, the range of dispatch"):
        validate_schedule(replace(paired, prefetch=()), few, HARDWARE)


@pytest.mark.parametrize(
    ("prefetch", "field", "allowed"),
    [
        (Prefetch(weight="moe.router", after="moe.gmm1", bytes=1, role="ffn"), "weight", "w13"),
        (Prefetch(weight="moe.w2", after="moe.topk", bytes=1, role="ffn"), "after", "afd.recv"),
        (Prefetch(weight="moe.router", after="moe.topk", bytes=1), "after", "router_matmul"),
    ],
)
def test_prefetches_are_of_the_role_that_has_the_weight_and_the_op(
    prefetch: Prefetch, field: str, allowed: str
) -> None:
    error = refused(replace(DIRECT, prefetch=(prefetch,)))
    assert error.field == f"prefetch[0].{field}"
    assert allowed in error.allowed


def test_rows_are_limited_for_each_attention_die_and_not_summed() -> None:
    full = with_dies(96, 32, 96 * 170)
    validate_schedule(full, MODEL, HARDWARE)
    error = refused(with_dies(96, 32, 96 * 171))
    assert "512 token rows" in error.allowed
    assert "513" in error.allowed


def test_fillers_need_twice_as_many_experts_as_choices() -> None:
    few = replace(MODEL, n_routed_experts=16)
    roles = {**DIRECT.deployment.roles, "ffn": replace(DIRECT.deployment.moe, dies=8, ep=8)}
    schedule = replace(DIRECT, deployment=replace(DIRECT.deployment, roles=roles))
    with pytest.raises(InputError) as caught:
        validate_schedule(schedule, few, HARDWARE)
    assert (caught.value.field, caught.value.value) == ("deployment.afd.transport", "direct")
    assert "there are 16" in caught.value.allowed
