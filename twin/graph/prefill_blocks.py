"""The op sequences of a prefill layer: un-absorbed attention and the double-routed MoE.

As in :mod:`twin.graph.blocks`, each function gives ops as (local name, OpSpec) in issue order.
"""

from __future__ import annotations

from hardware_models.ops import (
    BulkExchange,
    Collective,
    GqaAttention,
    HostRead,
    InitRouting,
    MatMul,
    RowOp,
)
from hardware_models.ops.tiling import ELEMENT_BYTES
from twin.graph.blocks import (
    BlockOps,
    WeightKey,
    activation_bytes,
    dense_ops,
    expert_ops,
    head_ops,
    o_proj_ops,
    router_ops,
)
from twin.graph.shapes import StepShapes

_COUNT_BYTES = 4
"""Rows for each expert are counted in int32."""
_SCALE_BYTES = 4
"""An int8 row travels with its fp32 scale."""


def attention_ops(
    shapes: StepShapes, sequences: int, block: str, at: WeightKey, *, fused_add: bool
) -> BlockOps:
    """One MLA block of whole prompts: heads get keys and values of their own (kv_b).

    ``block`` is its name, for example ``attention.1``; ``fused_add`` says whether the input
    norm also adds the residual of the block before.  Under attention_tp a die computes its
    heads for all rows of its group.
    """
    model, tp = shapes.model, shapes.schedule.deployment.attention.attention_tp
    held, rows = shapes.rows(sequences), shapes.attention_rows(sequences)
    hidden, heads, dtype = model.hidden_size, shapes.local_heads, shapes.dtype
    rank, rope = model.kv_lora_rank, model.qk_rope_head_dim
    tokens = shapes.rows_per_sequence

    def product(name: str, k: int, n: int) -> tuple[str, MatMul]:
        return name, MatMul(rows, k, n, dtype, at(f"{block}.{name}"))

    gather = Collective("all_gather", tp, activation_bytes(shapes, held))
    core = GqaAttention(
        sequences=sequences,
        rows=tokens,
        heads=heads,
        kv_heads=heads,
        kv_tokens=tokens,
        head_dim=model.qk_head_dim,
        causal=True,
        dtype=dtype,
        v_head_dim=model.v_head_dim,
    )
    ops: BlockOps = [
        ("input_norm", RowOp("add_rms_norm" if fused_add else "rms_norm", held, hidden)),
        *([("all_gather", gather)] if tp > 1 else []),
        product("q_a", hidden, model.q_lora_rank),
        ("q_norm", RowOp("rms_norm", rows, model.q_lora_rank)),
        product("q_b", model.q_lora_rank, heads * model.qk_head_dim),
        ("rope", RowOp("rope", rows * heads, rope)),
        product("kv_a", hidden, model.kv_width),
        ("kv_norm_rope_cache", RowOp("kv_norm_rope", rows, model.kv_width)),
        product("kv_b", rank, heads * (model.qk_nope_head_dim + model.v_head_dim)),
        ("attention", core),
        *o_proj_ops(shapes, rows, at(f"{block}.o_proj")),
        ("post_norm", RowOp("add_rms_norm", held, hidden)),
    ]
    return [(f"{block}.{name}", spec) for name, spec in ops]


def chunk_ops(shapes: StepShapes, rows: int, at: WeightKey) -> BlockOps:
    """Double routing of ``rows`` token rows a die: to their experts, through them and back.

    Rows are sorted by expert; the dies exchange first how many go where, which each host
    reads to size the exchange of the rows.  What arrives lies by source, so it is re-ordered by
    expert, and back before the way home.  Zero experts stay home: ``finalize_routing`` sums a
    token's real copies and the token itself, weighted by its zero experts.
    """
    model, ep = shapes.model, shapes.schedule.deployment.moe.ep
    hidden, size = model.hidden_size, ELEMENT_BYTES[shapes.dtype]
    sent = round(rows * model.real_topk)
    arriving = max(1, round(shapes.arriving_rows(rows)))
    row_bytes = hidden + _SCALE_BYTES if shapes.is_quantised else hidden * size
    counts = shapes.local_experts * ep * _COUNT_BYTES
    return [
        ("init_routing", InitRouting(rows, model.moe_topk, sent, hidden, shapes.is_quantised)),
        ("count_all_to_all", Collective("all_to_all", ep, counts)),
        ("read_counts", HostRead()),
        ("token_all_to_all", BulkExchange("dispatch", ep, float(sent * row_bytes))),
        ("re_routing", RowOp("re_routing", arriving, hidden, 1 if shapes.is_quantised else size)),
        *expert_ops(shapes, shapes.arriving_rows(rows), shapes.reached_experts(rows), at),
        ("restore_order", RowOp("gather", arriving, hidden)),
        ("back_all_to_all", BulkExchange("combine", ep, float(sent * hidden * size))),
        ("finalize_routing", RowOp("finalize_routing", sent + rows, hidden)),
    ]


def moe_ops(shapes: StepShapes, sequences: int, at: WeightKey) -> BlockOps:
    """Router of all rows, then chunk after chunk through the experts."""
    chunks = shapes.moe_chunks(sequences)
    ops = [(f"moe.{name}", spec) for name, spec in router_ops(shapes, sum(chunks), at)]
    for number, rows in enumerate(chunks):
        block = "moe" if len(chunks) == 1 else f"moe.chunk{number}"
        ops += [(f"{block}.{name}", spec) for name, spec in chunk_ops(shapes, rows, at)]
    return ops


def layer_ops(shapes: StepShapes, sequences: int, at: WeightKey) -> BlockOps:
    """A whole layer as the one chain that eager mode issues."""
    add = RowOp("add", shapes.rows(sequences), shapes.model.hidden_size)
    return [
        *attention_ops(shapes, sequences, "attention.0", at, fused_add=False),
        *moe_ops(shapes, sequences, at),
        *dense_ops(shapes, sequences, "dense.0", at),
        *attention_ops(shapes, sequences, "attention.1", at, fused_add=True),
        *dense_ops(shapes, sequences, "dense.1", at),
        ("add", add),
    ]


def tail_ops(shapes: StepShapes) -> BlockOps:
    """Behind the layers: the last token of each sequence, its norm, lm_head and sampling."""
    rows, hidden = shapes.head_rows(shapes.sequences), shapes.model.hidden_size
    return [
        ("last_tokens", RowOp("gather", rows, hidden)),
        ("final_norm", RowOp("rms_norm", rows, hidden)),
        *head_ops(shapes, shapes.sequences),
    ]
