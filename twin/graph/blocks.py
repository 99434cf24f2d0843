"""The op sequences of the building blocks: attention, dense FFN, MoE, output head.

Each function gives the block's ops as (local name, OpSpec) in issue order; where they run
is decided elsewhere.  Weight names are the block's local names; ``at`` turns a local
weight name into the key under which a prefetch of it would lie in L2.
"""

from __future__ import annotations

from collections.abc import Callable

from hardware_models.demand import OpSpec
from hardware_models.ops import (
    BatchMatMul,
    Collective,
    Combine,
    Dispatch,
    Embedding,
    GatingTopK,
    GroupedMatMul,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    QuantMatMul,
    RowOp,
    Sample,
)
from hardware_models.ops.tiling import ELEMENT_BYTES
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
    rows, hidden, dtype = shapes.rows(sequences), shapes.model.hidden_size, shapes.dtype
    tp = role.o_proj_tp
    prolog = MlaProlog(
        rows=rows,
        hidden=hidden,
        q_rank=model.q_lora_rank,
        kv_rank=model.kv_lora_rank,
        rope=model.qk_rope_head_dim,
        nope=model.qk_nope_head_dim,
        heads=model.num_attention_heads,
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
        heads=model.num_attention_heads,
        kv_tokens=shapes.schedule.workload.kv_tokens,
        kv_rank=model.kv_lora_rank,
        rope=model.qk_rope_head_dim,
        dtype=dtype,
    )
    uv = BatchMatMul(
        model.num_attention_heads,
        rows,
        model.kv_lora_rank,
        model.v_head_dim,
        dtype,
        at(f"{block}.uv"),
    )
    size = ELEMENT_BYTES[dtype]
    ops: BlockOps = [
        ("input_norm", RowOp("add_rms_norm" if fused_add else "rms_norm", rows, hidden)),
        ("prolog", prolog),
        ("attention", core),
        ("uv", uv),
    ]
    if tp > 1:
        ops.append(("all_to_all", Collective("all_to_all", tp, rows * model.o_proj_width * size)))
    o_proj = MatMul(rows * tp, model.o_proj_width // tp, hidden, dtype, at(f"{block}.o_proj"))
    ops.append(("o_proj", o_proj))
    if tp > 1:
        ops.append(("reduce_scatter", Collective("reduce_scatter", tp, rows * hidden * size)))
    ops.append(("post_norm", RowOp("add_rms_norm", rows, hidden)))
    return [(f"{block}.{name}", spec) for name, spec in ops]


def dense_ops(shapes: StepShapes, sequences: int, block: str, at: WeightKey) -> BlockOps:
    """One dense FFN: ``block`` is its name, for example ``dense.0``."""
    model, tp = shapes.model, shapes.schedule.deployment.attention.dense_tp
    rows, hidden = shapes.rows(sequences), shapes.model.hidden_size
    width = model.ffn_hidden_size // tp
    payload = rows * hidden * ELEMENT_BYTES[shapes.dtype]
    all_rows = rows * tp
    ops: BlockOps = []
    if tp > 1:
        ops.append(("all_gather", Collective("all_gather", tp, payload)))
    gate_up, down = at(f"{block}.gate_up"), at(f"{block}.down")
    if shapes.is_quantised:
        ops += [
            ("quant", RowOp("dynamic_quant", all_rows, hidden)),
            ("gate_up", QuantMatMul(all_rows, hidden, 2 * width, gate_up)),
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
        ops.append(("reduce_scatter", Collective("reduce_scatter", tp, payload)))
    return [(f"{block}.{name}", spec) for name, spec in ops]


def moe_ops(shapes: StepShapes, sequences: int, local_rows: int, at: WeightKey) -> BlockOps:
    """Router, dispatch, experts and combine on a die that brings ``local_rows`` tokens.

    ``sequences`` is what each attention die brings: it sets the rows that arrive here.
    """
    model, ep = shapes.model, shapes.schedule.deployment.moe.ep
    hidden, width = model.hidden_size, model.expert_ffn_hidden_size
    sent = local_rows * model.real_topk
    rows, active = shapes.expert_rows(sequences), shapes.active_experts(sequences)
    expert_dtype = "int8" if shapes.is_quantised else shapes.dtype
    swiglu_rows = max(1, round(rows))
    ops: BlockOps = [
        ("cast", RowOp("cast", local_rows, hidden)),
        (
            "router_matmul",
            MatMul(local_rows, hidden, model.router_width, "fp32", at("moe.router")),
        ),
        ("topk", GatingTopK(local_rows, model.router_width)),
        ("dispatch", Dispatch(sent, ep, hidden)),
        ("gmm1", GroupedMatMul(rows, hidden, 2 * width, active, expert_dtype, at("moe.w13"))),
        (
            "swiglu",
            RowOp(
                "dequant_swiglu_quant" if shapes.is_quantised else "swiglu",
                swiglu_rows,
                2 * width,
            ),
        ),
        ("gmm2", GroupedMatMul(rows, width, hidden, active, expert_dtype, at("moe.w2"))),
        ("combine", Combine(sent, ep, hidden)),
    ]
    return [(f"moe.{name}", spec) for name, spec in ops]


def head_ops(shapes: StepShapes, sequences: int) -> BlockOps:
    """lm_head (vocabulary-parallel over its TP group) and greedy sampling."""
    model, tp = shapes.model, shapes.schedule.deployment.attention.lm_head_tp
    rows, size = shapes.rows(sequences), ELEMENT_BYTES[shapes.dtype]
    ops: BlockOps = []
    if tp > 1:
        payload = rows * model.hidden_size * size
        ops.append(("lm_head_all_gather", Collective("all_gather", tp, payload)))
    head = MatMul(rows * tp, model.hidden_size, model.vocab_size // tp, shapes.dtype, "lm_head")
    ops.append(("lm_head", head))
    if tp > 1:
        payload = rows * model.vocab_size * size
        ops.append(("lm_head_all_to_all", Collective("all_to_all", tp, payload)))
    ops.append(("sample", Sample(rows, model.vocab_size)))
    return ops


def embed_ops(shapes: StepShapes, sequences: int) -> BlockOps:
    """Token embedding (vocabulary-parallel: the group adds its parts)."""
    rows, hidden = shapes.rows(sequences), shapes.model.hidden_size
    tp = shapes.schedule.deployment.attention.embed_tp
    ops: BlockOps = [("embed", Embedding(rows, hidden))]
    if tp > 1:
        payload = rows * hidden * ELEMENT_BYTES[shapes.dtype]
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
