"""Memory ledger: what lies in HBM on one die of each role, against its capacity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from hardware_models.hardware import Hardware
from hardware_models.ops.tiling import ELEMENT_BYTES
from twin.deployment import Role
from twin.graph.shapes import StepShapes, local_kv_tokens, step_shapes
from twin.memory_prefill import prefill_activation_bytes
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.weights import role_weights
from twin.windows import step_windows

MIB = 1024**2
KV_BLOCK_TOKENS = 128
"""Tokens per block of the paged KV cache: lengths round up to it."""


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Bytes on one die of a role."""

    weights_bytes: int
    kv_bytes: int
    activation_bytes: int
    hccl_bytes: int
    graph_bytes: int
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it together."""
        return (
            self.weights_bytes
            + self.kv_bytes
            + self.activation_bytes
            + self.hccl_bytes
            + self.graph_bytes
        )

    @property
    def excess_bytes(self) -> int:
        """By how much the die overflows (negative: what is free)."""
        return self.total_bytes - self.capacity_bytes


def memory_ledger(
    schedule: Schedule, model: ModelSpec, hardware: Hardware
) -> Mapping[Role, MemoryLedger]:
    """The ledger of every role of the deployment."""
    shapes = step_shapes(schedule, model)
    return {
        role: MemoryLedger(
            weights_bytes=_weight_total(shapes, role),
            kv_bytes=0 if role == "ffn" else _kv_bytes(shapes),
            activation_bytes=prefill_activation_bytes(shapes)
            if schedule.workload.is_prefill
            else _activation_bytes(shapes, role),
            hccl_bytes=_hccl_bytes(shapes, role, hardware),
            graph_bytes=int(hardware["graph_workspace_bytes"]),
            capacity_bytes=int(hardware["hbm_capacity_bytes"]),
        )
        for role in schedule.deployment.roles
    }


def _weight_total(shapes: StepShapes, role: Role) -> int:
    schedule = shapes.schedule
    items = role_weights(
        shapes.model,
        schedule.deployment,
        role,
        schedule.workload.next_n,
        schedule.moe.redundant_experts,
    )
    return sum(item.total_bytes for item in items)


def _kv_bytes(shapes: StepShapes) -> int:
    """Latent KV cache: two attentions a layer and one for each MTP pass, in whole blocks.

    Room is kept for the rows of the current step behind the cached tokens.  A die holds the
    sequences of its whole group: under kvp a part of each (the longest, on its first die);
    under attention_tp all of each, since the heads share one latent.
    """
    model, workload = shapes.model, shapes.schedule.workload
    kvp = shapes.schedule.deployment.attention.kvp
    tokens = local_kv_tokens(workload.positions, kvp, 0)
    blocks = math.ceil(tokens / KV_BLOCK_TOKENS)
    attentions = 2 * model.num_layers + workload.next_n
    per_token = model.kv_width * ELEMENT_BYTES[shapes.dtype]
    return shapes.sequences * blocks * KV_BLOCK_TOKENS * per_token * attentions


def _activation_bytes(shapes: StepShapes, role: Role) -> int:
    """The largest set of tensors alive at once, from the shapes (double-buffered).

    Attention: residual, gathered rows and their gate_up output, rows gathered for attention_tp,
    absorbed queries, logits in fp32.  FFN: the rows received, the experts' tensors.
    """
    model, deployment = shapes.model, shapes.schedule.deployment
    size = ELEMENT_BYTES[shapes.dtype]
    total = 0
    if role != "ffn":
        rows = shapes.rows(shapes.sequences)
        side = deployment.attention
        # Dies of a KVP group hold the same rows: dense TP gathers none.
        gathered = rows * side.dense_tp if side.kvp == 1 else rows
        dense = gathered * (model.hidden_size + 2 * model.ffn_hidden_size // side.dense_tp)
        attended = shapes.attention_rows(shapes.sequences)
        queries = attended * shapes.local_heads * model.kv_width
        queries += attended * model.hidden_size if side.attention_tp > 1 else 0
        logits = rows * model.vocab_size * 4
        total += 2 * size * (rows * model.hidden_size * 4 + dense + queries) + 2 * logits
    if role != "attention":
        # Direct transfers bring copies alone, not the rows of the attention dies it serves.
        served = 0 if deployment.is_direct else deployment.attention_ratio
        local = shapes.rows(max(shapes.micro_batches)) * served
        total += _expert_bytes(shapes) + 2 * size * local * model.hidden_size * 2
    return total


def _expert_bytes(shapes: StepShapes) -> int:
    """Two neighbours among copies, gate and up, their product, and the result, at the fullest.

    Kernels have room for all copies that could come, not for those that do: dispatch for
    min(local experts, topk) of every row of all ranks, direct transfers for topk (the shapes
    that the ops of torch_npu 2.13 give).
    """
    model, deployment = shapes.model, shapes.schedule.deployment
    rows = shapes.rows(max(shapes.micro_batches)) * deployment.attention.dies
    each = model.moe_topk
    if not deployment.is_direct:
        each = min(shapes.local_experts, each)
    size, hidden = ELEMENT_BYTES[shapes.dtype], model.hidden_size
    width = model.expert_ffn_hidden_size
    inner, sums = (1, 4) if shapes.is_quantised else (size, size)
    tensors = (inner * hidden, sums * 2 * width, inner * width, size * hidden)
    return rows * each * max(one + other for one, other in pairwise(tensors))


def _align(value: int, step: int) -> int:
    return math.ceil(value / step) * step


def dispatch_buffer_mib(shapes: StepShapes, hardware: Hardware) -> int:
    """HCCL_BUFFSIZE of a schedule in MiB: what dispatch and combine need, at least the default.

    The rows are those that one MoE die brings (AFD: of all attention dies it serves).  Direct
    transfers have windows of their own.
    """
    model, deployment = shapes.model, shapes.schedule.deployment
    if deployment.is_direct:
        return hardware.count("hccl_buffer_mb")
    needed = exchange_buffer_mib(
        local_experts=shapes.local_experts,
        rows=shapes.rows(max(shapes.micro_batches)) * deployment.attention_ratio,
        ranks=deployment.moe.ep,
        hidden=model.hidden_size,
        topk=model.moe_topk,
    )
    return max(hardware.count("hccl_buffer_mb"), needed)


def exchange_buffer_mib(
    *, local_experts: int, rows: int, ranks: int, hidden: int, topk: int
) -> int:
    """MiB that dispatch and combine need of HCCL's buffer, 11 MiB of its own included.

    Formula of the dispatch op's documentation: 2 x (local experts x maxBs x EP x
    align512(align32(2 H) + 64) + K x maxBs x align512(2 H)).
    """
    row_bytes = 2 * hidden
    window = local_experts * rows * ranks * _align(_align(row_bytes, 32) + 64, 512)
    back = topk * rows * _align(row_bytes, 512)
    return math.ceil(2 * (window + back) / MIB) + 11


def _hccl_bytes(shapes: StepShapes, role: Role, hardware: Hardware) -> int:
    """Buffers of every communicator a die takes part in, and its window of direct transfers.

    The experts' has HCCL_BUFFSIZE, the others HCCL's default, which the runtime asks for.
    """
    deployment = shapes.schedule.deployment
    default = hardware.count("hccl_buffer_mb")
    if deployment.total_dies == 1:
        return 0
    sizes_mib = [default]  # the world
    if role != "ffn":
        side = deployment.attention
        # attention_tp and kvp are o_proj_tp where they are above 1: the same group.
        groups = {side.o_proj_tp, side.dense_tp, side.lm_head_tp, side.embed_tp} - {1}
        sizes_mib += [default] * len(groups)
    window = 0
    if deployment.is_direct:
        sizes_mib.append(default)  # all dies once more
        window = step_windows(shapes).window_bytes(role)
    elif role != "attention":
        # Double routing exchanges by plain all-to-alls, which need no window for each token.
        is_prefill = shapes.schedule.workload.is_prefill
        sizes_mib.append(default if is_prefill else dispatch_buffer_mib(shapes, hardware))
    if deployment.is_afd and not deployment.is_direct:
        pairs = deployment.ffn_transfers if role == "ffn" else 1
        sizes_mib += [default] * pairs
    return window + int(sum(sizes_mib) * MIB * hardware["hccl_buffers_per_communicator"])
