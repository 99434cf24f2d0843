"""The ops of torch_npu that the npu backend calls, by name."""

from __future__ import annotations

NEEDED_OPS = (
    "npu_add_rms_norm",
    "npu_attention_update",
    "npu_dequant_swiglu_quant",
    "npu_dynamic_quant",
    "npu_fused_infer_attention_score_v2",
    "npu_grouped_matmul",
    "npu_interleave_rope",
    "npu_kv_rmsnorm_rope_cache",
    "npu_mla_prolog_v3",
    "npu_moe_distribute_combine_v2",
    "npu_moe_distribute_dispatch_v2",
    "npu_moe_finalize_routing",
    "npu_moe_gating_top_k",
    "npu_moe_init_routing_v2",
    "npu_moe_re_routing",
    "npu_prefetch",
    "npu_quant_matmul",
    "npu_rms_norm",
    "npu_swiglu",
    "npu_transpose_batchmatmul",
)
