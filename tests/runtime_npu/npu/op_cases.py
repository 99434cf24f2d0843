"""One good call of every fused op, at the sizes of LongCat-Flash on one die (EP128, 12 rows)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from runtime_npu.backends.fillers import Candidates
from runtime_npu.npu import attention_ops, direct_ops, matmul_ops, moe_ops, vector_ops
from runtime_npu.npu.direct_ops import Batched
from runtime_npu.npu.moe_ops import Exchange, Received
from runtime_npu.npu.window_forms import WindowForms
from twin.windows import Windows

ROWS, HIDDEN, HEADS, Q_RANK, KV_RANK, ROPE, NOPE, V = 12, 6144, 64, 1536, 512, 64, 128, 128
SEQUENCES, BLOCKS, BLOCK = 4, 160, 128
EP, EXPERTS, COPIES, TOPK, FFN, DENSE = 128, 512, 256, 12, 2048, 1536
LOCAL = EXPERTS // EP
ARRIVING = ROWS * EP * min(LOCAL, TOPK)
BF16, F32, I8, I32, I64 = torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64
EXCHANGE = Exchange("hcom_ep", ranks=EP, rank=3, experts=EXPERTS, copies=COPIES, rows=ROWS)

WINDOWS = Windows(
    attention=64, micro_batches=2, rows=ROWS, choices=TOPK, hidden=HIDDEN, element_bytes=1
)
COPIED = WINDOWS.attention * ROWS * TOPK

Make = Callable[..., torch.Tensor]
Arguments = dict[str, Any]


def window_forms_of(t: Make) -> WindowForms:
    """Those of an attention die of 64, beside 64 FFN dies."""
    return WindowForms(
        windows=WINDOWS,
        group="hcom_link",
        ranks=128,
        experts=EXPERTS,
        context=t(1024, dtype=I8),
        session=t(1, dtype=I32),
        numbers=(t(1, dtype=I32), t(1, dtype=I32)),
        expert_ranks=t(1, EXPERTS, 2, dtype=I32),
        attention_ranks=t(64, dtype=I32),
        candidates=Candidates(t(ROWS, 2 * TOPK, dtype=I32), t(ROWS, 2 * TOPK, dtype=I32)),
    )


def calls(t: Make) -> Mapping[str, tuple[Callable[..., Any], Arguments]]:
    """Function and arguments of each op; ``t(*sizes, dtype=...)`` makes a tensor."""
    latent_cache = t(BLOCKS, BLOCK, 1, KV_RANK)
    rope_cache = t(BLOCKS, BLOCK, 1, ROPE)
    attention: Arguments = {
        "q_latent": t(ROWS, HEADS, KV_RANK),
        "q_rope": t(ROWS, HEADS, ROPE),
        "latent_cache": latent_cache,
        "rope_cache": rope_cache,
        "block_table": t(SEQUENCES, 37, dtype=I32),
        "last_rows": [3, 6, 9, 12],
        "scale": 0.07,
    }
    routed: Arguments = {
        "x": t(ROWS, HIDDEN),
        "ids": t(ROWS, TOPK, dtype=I32),
        "experts": EXPERTS,
        "copies": COPIES,
    }
    mask = t(*attention_ops.MASK, dtype=torch.bool)
    received = Received(
        rows=t(ARRIVING, HIDDEN, dtype=I8),
        scales=t(ARRIVING, dtype=F32),
        counts=t(LOCAL, dtype=I64),
        assist=t(ARRIVING * 128, dtype=I32),
        sent=t(EP * LOCAL, dtype=I32),
        tp_sent=t(0, dtype=I32),
    )
    windows = window_forms_of(t)
    context = t(1024, dtype=I8)
    batched = Batched(
        rows=t(COPIED, HIDDEN),
        counts=t(EXPERTS, 2, dtype=I64),
        sessions=t(COPIED, dtype=I32),
        micro_batches=t(COPIED, dtype=I32),
        tokens=t(COPIED, dtype=I32),
        offsets=t(COPIED, dtype=I32),
        scales=t(COPIED, dtype=F32),
        total=t(1, dtype=I64),
    )
    return {
        "npu_attention_to_ffn": (
            direct_ops.attention_to_ffn,
            {
                "x": t(ROWS, HIDDEN),
                "ids": t(ROWS, TOPK, dtype=I32),
                "forms": windows,
                "turn": 1,
                "quantise": True,
            },
        ),
        "attention_worker_scheduler": (direct_ops.attention_wait, {"context": context}),
        "npu_attention_worker_combine": (
            direct_ops.attention_combine,
            {
                "context": context,
                "weights": t(ROWS, TOPK, dtype=F32),
                "forms": windows,
                "dtype": BF16,
            },
        ),
        "ffn_worker_scheduler": (direct_ops.ffn_wait, {"context": context, "forms": windows}),
        "npu_ffn_worker_batching": (
            direct_ops.ffn_batching,
            {"context": context, "forms": windows, "dtype": I8},
        ),
        "npu_ffn_to_attention": (
            direct_ops.ffn_to_attention,
            {"rows": t(COPIED, HIDDEN), "batched": batched, "forms": windows},
        ),
        "npu_mla_prolog_v3": (
            attention_ops.mla_prolog,
            {
                "x": t(ROWS, HIDDEN),
                "q_a": t(HIDDEN, Q_RANK),
                "q_b": t(Q_RANK, HEADS * (NOPE + ROPE)),
                "uk": t(HEADS, NOPE, KV_RANK),
                "kv_a": t(HIDDEN, KV_RANK + ROPE),
                "q_norm": t(Q_RANK),
                "kv_norm": t(KV_RANK),
                "sin": t(ROWS, ROPE),
                "cos": t(ROWS, ROPE),
                "latent_cache": latent_cache,
                "rope_cache": rope_cache,
                "slots": t(ROWS, dtype=I64),
                "epsilon": 1e-6,
                "q_scale": 2.0,
                "kv_scale": 3.464,
            },
        ),
        "npu_fused_infer_attention_score_v2": (
            attention_ops.paged_attention,
            {**attention, "kv_lengths": [4608] * SEQUENCES},
        ),
        "npu_fused_infer_attention_score_v2 with lse": (
            attention_ops.paged_attention,
            {**attention, "kv_lengths": [576] * SEQUENCES, "with_lse": True},
        ),
        "npu_fused_infer_attention_score_v2 with drafts": (
            attention_ops.paged_attention,
            {**attention, "kv_lengths": [4608] * SEQUENCES, "mask": mask},
        ),
        "npu_fused_infer_attention_score_v2 with lengths on the device": (
            attention_ops.paged_attention,
            {
                **attention,
                "mask": mask,
                "last_rows": t(SEQUENCES, dtype=I64),
                "kv_lengths": t(SEQUENCES, dtype=I64),
            },
        ),
        "npu_fused_infer_attention_score_v2 of prompts": (
            attention_ops.causal_attention,
            {
                "q_nope": t(ROWS, HEADS, NOPE),
                "q_rope": t(ROWS, HEADS, ROPE),
                "k_nope": t(ROWS, HEADS, NOPE),
                "k_rope": t(ROWS, HEADS, ROPE),
                "values": t(ROWS, HEADS, V),
                "mask": mask,
                "last_rows": [5, 12],
                "scale": 0.07,
            },
        ),
        "npu_interleave_rope": (
            attention_ops.interleave_rope,
            {"x": t(ROWS, HEADS, ROPE), "cos": t(ROWS, ROPE), "sin": t(ROWS, ROPE)},
        ),
        "npu_attention_update": (
            attention_ops.attention_update,
            {
                "outputs": [t(ROWS * HEADS, V)] * 8,
                "lse": [t(ROWS * HEADS, dtype=F32)] * 8,
            },
        ),
        "npu_kv_rmsnorm_rope_cache": (
            attention_ops.kv_rmsnorm_rope_cache,
            {
                "kv": t(ROWS, 1, 1, KV_RANK + ROPE),
                "gamma": t(KV_RANK),
                "cos": t(ROWS, 1, 1, ROPE),
                "sin": t(ROWS, 1, 1, ROPE),
                "slots": t(ROWS, dtype=I64),
                "rope_cache": rope_cache,
                "latent_cache": latent_cache,
                "epsilon": 1e-6,
            },
        ),
        "npu_transpose_batchmatmul": (
            matmul_ops.transpose_batchmatmul,
            {"x": t(HEADS, ROWS, KV_RANK), "weight": t(HEADS, KV_RANK, V), "heads_first": True},
        ),
        "npu_transpose_batchmatmul rows first": (
            matmul_ops.transpose_batchmatmul,
            {"x": t(ROWS, HEADS, KV_RANK), "weight": t(HEADS, KV_RANK, V), "heads_first": False},
        ),
        "npu_quant_matmul": (
            matmul_ops.quant_matmul,
            {
                "x": t(96, DENSE, dtype=I8),
                "weight": t(DENSE, HIDDEN, dtype=I8),
                "scale": t(HIDDEN),
                "row_scale": t(96, dtype=F32),
                "dtype": BF16,
            },
        ),
        "npu_quant_matmul sums": (
            matmul_ops.quant_matmul_sums,
            {
                "x": t(96, HIDDEN, dtype=I8),
                "weight": t(HIDDEN, 2 * DENSE, dtype=I8),
                "ones": t(2 * DENSE, dtype=F32),
            },
        ),
        "npu_grouped_matmul sums": (
            matmul_ops.grouped_matmul,
            {
                "x": received.rows,
                "weight": t(LOCAL, HIDDEN, 2 * FFN, dtype=I8),
                "counts": received.counts,
                "dtype": I32,
            },
        ),
        "npu_grouped_matmul": (
            matmul_ops.grouped_matmul,
            {
                "x": t(ARRIVING, FFN, dtype=I8),
                "weight": t(LOCAL, FFN, HIDDEN, dtype=I8),
                "counts": received.counts,
                "scale": t(LOCAL, HIDDEN),
                "row_scale": t(ARRIVING, dtype=F32),
                "dtype": BF16,
            },
        ),
        "npu_grouped_matmul bf16": (
            matmul_ops.grouped_matmul,
            {
                "x": t(ARRIVING, HIDDEN),
                "weight": t(LOCAL, HIDDEN, 2 * FFN),
                "counts": received.counts,
                "dtype": BF16,
            },
        ),
        "npu_moe_gating_top_k": (
            moe_ops.gating_top_k,
            {
                "logits": t(ROWS, EXPERTS + COPIES, dtype=F32),
                "bias": t(EXPERTS + COPIES, dtype=F32),
                "topk": TOPK,
                "scale": 6.0,
            },
        ),
        "npu_moe_distribute_dispatch_v2": (
            moe_ops.dispatch,
            {
                "x": t(ROWS, HIDDEN),
                "ids": t(ROWS, TOPK, dtype=I32),
                "exchange": EXCHANGE,
                "quantise": True,
            },
        ),
        "npu_moe_distribute_combine_v2": (
            moe_ops.combine,
            {
                "expert_rows": t(ARRIVING, HIDDEN),
                "received": replace(received),
                "x": t(ROWS, HIDDEN),
                "ids": t(ROWS, TOPK, dtype=I32),
                "weights": t(ROWS, TOPK, dtype=F32),
                "exchange": EXCHANGE,
            },
        ),
        "npu_moe_init_routing_v2": (
            moe_ops.init_routing,
            routed,
        ),
        "npu_moe_init_routing_v2 quantised": (moe_ops.init_routing_quantised, routed),
        "npu_moe_re_routing": (
            moe_ops.re_routing,
            {
                "rows": t(1024, HIDDEN, dtype=I8),
                "counts": t(EP, LOCAL, dtype=I64),
                "scales": t(1024, dtype=F32),
            },
        ),
        "npu_moe_re_routing bf16": (
            moe_ops.re_routing,
            {"rows": t(1024, HIDDEN), "counts": t(EP, LOCAL, dtype=I64)},
        ),
        "npu_moe_finalize_routing": (
            moe_ops.finalize_routing,
            {
                "rows": t(ROWS * TOPK, HIDDEN),
                "weights": t(ROWS, TOPK),
                "places": t(ROWS * TOPK, dtype=I32),
            },
        ),
        "npu_dynamic_quant": (vector_ops.dynamic_quant, {"x": t(96, HIDDEN)}),
        "npu_dequant_swiglu_quant": (
            vector_ops.dequant_swiglu_quant,
            {
                "x": t(96, 2 * DENSE, dtype=I32),
                "weight_scale": t(2 * DENSE, dtype=F32),
                "activation_scale": t(96, dtype=F32),
            },
        ),
        "npu_dequant_swiglu_quant grouped": (
            vector_ops.dequant_swiglu_quant,
            {
                "x": t(ARRIVING, 2 * FFN, dtype=I32),
                "weight_scale": t(LOCAL, 2 * FFN, dtype=F32),
                "activation_scale": t(ARRIVING, dtype=F32),
                "counts": t(LOCAL, dtype=I64),
            },
        ),
        "npu_swiglu": (vector_ops.swiglu, {"x": t(96, 2 * DENSE)}),
        "npu_rms_norm": (
            vector_ops.rms_norm,
            {"x": t(ROWS, HIDDEN), "gamma": t(HIDDEN), "epsilon": 1e-5},
        ),
        "npu_add_rms_norm": (
            vector_ops.add_rms_norm,
            {
                "x": t(ROWS, HIDDEN),
                "residual": t(ROWS, HIDDEN),
                "gamma": t(HIDDEN),
                "epsilon": 1e-5,
            },
        ),
        "npu_prefetch": (
            vector_ops.prefetch,
            {"weight": t(HIDDEN, KV_RANK + ROPE), "after": t(ROWS, HIDDEN), "max_bytes": 7 << 20},
        ),
    }
