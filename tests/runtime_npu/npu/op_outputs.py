"""What each call of op_cases gives: shape and type of its results, in order."""

from __future__ import annotations

from collections.abc import Mapping

from op_cases import (
    ARRIVING,
    COPIED,
    DENSE,
    EP,
    EXPERTS,
    FFN,
    HEADS,
    HIDDEN,
    KV_RANK,
    LOCAL,
    ROPE,
    ROWS,
    TOPK,
    V,
)

OUTPUTS: Mapping[str, list[tuple[tuple[int, ...], str]]] = {
    "npu_attention_to_ffn": [],
    "attention_worker_scheduler": [((1024,), "int8")],
    "npu_attention_worker_combine": [((ROWS, HIDDEN), "bfloat16")],
    "ffn_worker_scheduler": [((1024,), "int8")],
    "npu_ffn_worker_batching": [
        ((COPIED, HIDDEN), "int8"),
        ((EXPERTS, 2), "int64"),
        ((COPIED,), "int32"),
        ((COPIED,), "int32"),
        ((COPIED,), "int32"),
        ((COPIED,), "int32"),
        ((COPIED,), "float32"),
        ((1,), "int64"),
    ],
    "npu_ffn_to_attention": [],
    "npu_mla_prolog_v3": [
        ((ROWS, HEADS, KV_RANK), "bfloat16"),
        ((ROWS, HEADS, ROPE), "bfloat16"),
    ],
    "npu_fused_infer_attention_score_v2": [
        ((HEADS, ROWS, KV_RANK), "bfloat16"),
        ((0,), "float32"),
    ],
    "npu_fused_infer_attention_score_v2 with lse": [
        ((HEADS, ROWS, KV_RANK), "bfloat16"),
        ((ROWS, HEADS, 1), "float32"),
    ],
    "npu_fused_infer_attention_score_v2 with drafts": [
        ((HEADS, ROWS, KV_RANK), "bfloat16"),
        ((0,), "float32"),
    ],
    "npu_fused_infer_attention_score_v2 with lengths on the device": [
        ((HEADS, ROWS, KV_RANK), "bfloat16"),
        ((0,), "float32"),
    ],
    "npu_fused_infer_attention_score_v2 of prompts": [((ROWS, HEADS, V), "bfloat16")],
    "npu_interleave_rope": [((ROWS, HEADS, ROPE), "bfloat16")],
    "npu_attention_update": [((ROWS * HEADS, V), "bfloat16")],
    "npu_kv_rmsnorm_rope_cache": [
        ((ROWS, 1, 1, ROPE), "bfloat16"),
        ((ROWS, 1, 1, KV_RANK), "bfloat16"),
    ],
    "npu_transpose_batchmatmul": [((ROWS, HEADS, V), "bfloat16")],
    "npu_transpose_batchmatmul rows first": [((ROWS, HEADS, V), "bfloat16")],
    "npu_quant_matmul": [((96, HIDDEN), "bfloat16")],
    "npu_quant_matmul sums": [((96, 2 * DENSE), "int32")],
    "npu_grouped_matmul sums": [((ARRIVING, 2 * FFN), "int32")],
    "npu_grouped_matmul": [((ARRIVING, HIDDEN), "bfloat16")],
    "npu_grouped_matmul bf16": [((ARRIVING, 2 * FFN), "bfloat16")],
    "npu_moe_gating_top_k": [((ROWS, TOPK), "float32"), ((ROWS, TOPK), "int32")],
    "npu_moe_distribute_dispatch_v2": [
        ((ARRIVING, HIDDEN), "int8"),
        ((ARRIVING,), "float32"),
        ((LOCAL,), "int64"),
        ((ARRIVING * 128,), "int32"),
        ((EP * LOCAL,), "int32"),
        ((0,), "int32"),
    ],
    "npu_moe_distribute_combine_v2": [((ROWS, HIDDEN), "bfloat16")],
    "npu_moe_init_routing_v2": [
        ((ROWS * TOPK, HIDDEN), "bfloat16"),
        ((ROWS * TOPK,), "int32"),
        ((EXPERTS,), "int64"),
    ],
    "npu_moe_init_routing_v2 quantised": [
        ((ROWS * TOPK, HIDDEN), "int8"),
        ((ROWS * TOPK,), "float32"),
        ((ROWS * TOPK,), "int32"),
        ((EXPERTS,), "int64"),
    ],
    "npu_moe_re_routing": [
        ((1024, HIDDEN), "int8"),
        ((1024,), "float32"),
        ((1024,), "int32"),
        ((LOCAL,), "int64"),
    ],
    "npu_moe_re_routing bf16": [
        ((1024, HIDDEN), "bfloat16"),
        ((1024,), "float32"),
        ((1024,), "int32"),
        ((LOCAL,), "int64"),
    ],
    "npu_moe_finalize_routing": [((ROWS, HIDDEN), "bfloat16")],
    "npu_dynamic_quant": [((96, HIDDEN), "int8"), ((96,), "float32")],
    "npu_dequant_swiglu_quant": [((96, DENSE), "int8"), ((96,), "float32")],
    "npu_dequant_swiglu_quant grouped": [((ARRIVING, FFN), "int8"), ((ARRIVING,), "float32")],
    "npu_swiglu": [((96, DENSE), "bfloat16")],
    "npu_rms_norm": [((ROWS, HIDDEN), "bfloat16")],
    "npu_add_rms_norm": [((ROWS, HIDDEN), "bfloat16"), ((ROWS, HIDDEN), "bfloat16")],
    # 6.75 MiB is all that there is of the 7 MiB asked for.
    "npu_prefetch": [],
}
"""What each call must give, by our own arithmetic; prefetch gives its bytes."""
