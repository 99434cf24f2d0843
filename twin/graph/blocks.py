"""The op sequences of the building blocks: attention, dense FFN, MoE, output head.

Each function gives the block's ops as (local name, OpSpec) in issue order; where they run
is decided elsewhere.  Weight names are the block's local names; ``at`` turns a local
weight name into the key under which a prefetch of it would lie in L2.
"""

from __future__ import annotations

from collections.abc import Callable

from hardware_models.demand import OpSpec
from hardware_models.ops import (
    AttentionUpdate,
    BatchMatMul,
    Collective,
    Combine,
    Dispatch,
    Embedding,
    FillChoices,
    GatingTopK,
    GroupedMatMul,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    QuantMatMul,
    RowOp,
    Sample,
)
from hardware_models.ops.attention import LSE_BYTES
from hardware_models.ops.collective import HcclKind
from hardware_models.ops.tiling import ELEMENT_BYTES
from hardware_models.ops.vector import RowKind
from twin.graph.shapes import StepShapes

WeightKey = Callable[[str], str]
BlockOps = list[tuple[str, OpSpec]]


def attention_ops(
    shapes: StepShapes, sequences: int, block: str, at: WeightKey, *, fused_add: bool
) -> BlockOps:
    """One MLA block, norms included: ``block`` is its name, for example ``attention.1``.

    ``fused_add`` says whether the input norm also adds the residual of the block before.
    """
    model, role = shapes.model, shapes.schedule.deployment.attention
    held, rows = shapes.rows(sequences), shapes.attention_rows(sequences)
    hidden, heads, dtype = model.hidden_size, shapes.local_heads, shapes.dtype
    prolog = MlaProlog(
        rows=rows,
        hidden=hidden,
        q_rank=model.q_lora_rank,
        kv_rank=model.kv_lora_rank,
        rope=model.qk_rope_head_dim,
        nope=model.qk_nope_head_dim,
        heads=heads,
        dtype=dtype,
        weights=(
            at(f"{block}.q_a"),
            at(f"{block}.q_b"),
            at(f"{block}.kv_a"),
            at(f"{block}.uk"),
        ),
    )
    core = MlaDecodeAttention(
        sequences=sequences,
        rows=shapes.rows_per_sequence,
        heads=heads,
        kv_tokens=shapes.local_kv_tokens,
        kv_rank=model.kv_lora_rank,
        rope=model.qk_rope_head_dim,
        dtype=dtype,
    )
    uv = BatchMatMul(heads, rows, model.kv_lora_rank, model.v_head_dim, dtype, at(f"{block}.uv"))
    gather = Collective("all_gather", role.attention_tp, activation_bytes(shapes, held))
    ops: BlockOps = [
        ("input_norm", RowOp("add_rms_norm" if fused_add else "rms_norm", held, hidden)),
        *([("all_gather", gather)] if role.attention_tp > 1 else []),
        ("prolog", prolog),
        ("attention", core),
        ("uv", uv),
        *o_proj_ops(shapes, rows, at(f"{block}.o_proj")),
        ("post_norm", RowOp("add_rms_norm", held, hidden)),
    ]
    return [(f"{block}.{name}", spec) for name, spec in ops]


def o_proj_ops(shapes: StepShapes, rows: int, weight: str) -> BlockOps:
    """From the heads' outputs of ``rows`` rows to hidden rows, and the exchanges around it."""
    model, role = shapes.model, shapes.schedule.deployment.attention
    tp, width, hidden, dtype = (
        role.o_proj_tp,
        model.o_proj_width,
        model.hidden_size,
        shapes.dtype,
    )
    heads_bytes = rows * width * ELEMENT_BYTES[dtype]
    summed = activation_bytes(shapes, rows)
    if role.kvp > 1:
        heads = model.num_attention_heads
        return [
            ("all_to_all", Collective("all_to_all", tp, heads_bytes)),
            ("lse_all_to_all", Collective("all_to_all", tp, rows * heads * LSE_BYTES)),
            ("merge", AttentionUpdate(tp, rows * heads // tp, model.v_head_dim, dtype)),
            ("o_proj", MatMul(rows, width // tp, hidden, dtype, weight)),
            ("all_reduce", Collective("all_reduce", tp, summed)),
        ]
    if role.attention_tp > 1:
        return [
            ("o_proj", MatMul(rows, width // tp, hidden, dtype, weight)),
            ("reduce_scatter", Collective("reduce_scatter", tp, summed // tp)),
        ]
    if tp > 1:
        return [
            ("all_to_all", Collective("all_to_all", tp, heads_bytes)),
            ("o_proj", MatMul(rows * tp, width // tp, hidden, dtype, weight)),
            ("reduce_scatter", Collective("reduce_scatter", tp, summed)),
        ]
    return [("o_proj", MatMul(rows, width, hidden, dtype, weight))]


def activation_bytes(shapes: StepShapes, rows: int) -> int:
    """Bytes of ``rows`` hidden rows."""
    return rows * shapes.model.hidden_size * ELEMENT_BYTES[shapes.dtype]


def dense_ops(shapes: StepShapes, sequences: int, block: str, at: WeightKey) -> BlockOps:
    """One dense FFN: ``block`` is its name, for example ``dense.0``.

    The dies of a KVP group hold the same rows, so there is nothing to gather.
    """
    model, role = shapes.model, shapes.schedule.deployment.attention
    tp, rows, hidden = role.dense_tp, shapes.rows(sequences), shapes.model.hidden_size
    width = model.ffn_hidden_size // tp
    payload = activation_bytes(shapes, rows)
    all_rows = rows * tp if role.kvp == 1 else rows
    ops: BlockOps = []
    if tp > 1 and role.kvp == 1:
        ops.append(("all_gather", Collective("all_gather", tp, payload)))
    gate_up, down = at(f"{block}.gate_up"), at(f"{block}.down")
    if shapes.is_quantised:
        ops += [
            ("quant", RowOp("dynamic_quant", all_rows, hidden)),
            ("gate_up", QuantMatMul(all_rows, hidden, 2 * width, gate_up, "int32")),
            ("swiglu", RowOp("dequant_swiglu_quant", all_rows, 2 * width)),
            ("down", QuantMatMul(all_rows, width, hidden, down)),
        ]
    else:
        ops += [
            ("gate_up", MatMul(all_rows, hidden, 2 * width, shapes.dtype, gate_up)),
            ("swiglu", RowOp("swiglu", all_rows, 2 * width)),
            ("down", MatMul(all_rows, width, hidden, shapes.dtype, down)),
        ]
    if tp > 1:
        kind: HcclKind = "reduce_scatter" if role.kvp == 1 else "all_reduce"
        ops.append((kind, Collective(kind, tp, payload)))
    return [(f"{block}.{name}", spec) for name, spec in ops]


def moe_ops(shapes: StepShapes, sequences: int, local_rows: int, at: WeightKey) -> BlockOps:
    """Router, dispatch, experts and combine on a die that brings ``local_rows`` tokens.

    ``sequences`` is what each attention group brings: it sets the rows that arrive here.
    """
    model, ep = shapes.model, shapes.schedule.deployment.moe.ep
    sent = local_rows * model.real_topk
    rows, active = shapes.expert_rows(sequences), shapes.active_experts(sequences)
    ops: BlockOps = [
        *router_ops(shapes, local_rows, at),
        ("dispatch", Dispatch(sent, ep, model.hidden_size)),
        *expert_ops(shapes, rows, active, at),
        ("combine", Combine(sent, ep, model.hidden_size)),
    ]
    return [(f"moe.{name}", spec) for name, spec in ops]


def router_ops(shapes: StepShapes, rows: int, at: WeightKey) -> BlockOps:
    """The experts' choice for ``rows`` token rows: an fp32 product and the top-k."""
    hidden, width = shapes.model.hidden_size, shapes.model.router_width
    return [
        ("cast", RowOp("cast", rows, hidden)),
        ("router_matmul", MatMul(rows, hidden, width, "fp32", at("moe.router"))),
        ("topk", GatingTopK(rows, width)),
    ]


def fill_ops(shapes: StepShapes, rows: int) -> BlockOps:
    """Real ids in place of zero experts', for transfers that know no others."""
    return [("fill", FillChoices(rows, shapes.model.moe_topk))]


def expert_ops(shapes: StepShapes, rows: float, active: float, at: WeightKey) -> BlockOps:
    """``rows`` token copies through the ``active`` experts of a die that they reach."""
    hidden, width = shapes.model.hidden_size, shapes.model.expert_ffn_hidden_size
    dtype = "int8" if shapes.is_quantised else shapes.dtype
    kind: RowKind = "dequant_swiglu_quant" if shapes.is_quantised else "swiglu"
    return [
        ("gmm1", GroupedMatMul(rows, hidden, 2 * width, active, dtype, at("moe.w13"))),
        ("swiglu", RowOp(kind, max(1, round(rows)), 2 * width)),
        ("gmm2", GroupedMatMul(rows, width, hidden, active, dtype, at("moe.w2"))),
    ]


def head_ops(shapes: StepShapes, sequences: int) -> BlockOps:
    """lm_head (vocabulary-parallel over its TP group) and greedy sampling."""
    model, tp = shapes.model, shapes.schedule.deployment.attention.lm_head_tp
    rows = shapes.head_rows(sequences)
    ops: BlockOps = []
    if tp > 1:
        payload = activation_bytes(shapes, rows)
        ops.append(("lm_head_all_gather", Collective("all_gather", tp, payload)))
    head = MatMul(rows * tp, model.hidden_size, model.vocab_size // tp, shapes.dtype, "lm_head")
    ops.append(("lm_head", head))
    if tp > 1:
        payload = rows * model.vocab_size * ELEMENT_BYTES[shapes.dtype]
        ops.append(("lm_head_all_to_all", Collective("all_to_all", tp, payload)))
    ops.append(("sample", Sample(rows, model.vocab_size)))
    return ops


def embed_ops(shapes: StepShapes, sequences: int) -> BlockOps:
    """Token embedding (vocabulary-parallel: the group adds its parts)."""
    rows, hidden = shapes.rows(sequences), shapes.model.hidden_size
    tp = shapes.schedule.deployment.attention.embed_tp
    ops: BlockOps = [("embed", Embedding(rows, hidden))]
    if tp > 1:
        payload = activation_bytes(shapes, rows)
        ops.append(("embed_reduce_scatter", Collective("reduce_scatter", tp, payload)))
    return ops


def mtp_ops(shapes: StepShapes, sequences: int, number: int) -> BlockOps:
    """One MTP pass: embedding, norms, eh_proj, attention, dense FFN, norm, head."""
    rows, hidden = shapes.rows(sequences), shapes.model.hidden_size
    prefix = f"mtp.{number}."

    def at(weight: str) -> str:
        return f"mtp.{weight}"

    eh_proj = MatMul(rows, 2 * hidden, hidden, shapes.dtype, at("eh_proj"))
    ops = [
        *embed_ops(shapes, sequences),
        ("norms", RowOp("rms_norm", 2 * rows, hidden)),
        ("eh_proj", eh_proj),
        *attention_ops(shapes, sequences, "attention", at, fused_add=False),
        *dense_ops(shapes, sequences, "dense", at),
        ("norm", RowOp("add_rms_norm", rows, hidden)),
        *head_ops(shapes, sequences),
    ]
    return [(prefix + name, spec) for name, spec in ops]
