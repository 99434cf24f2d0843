"""The ops of torch_npu that the npu backend calls, by name."""

from __future__ import annotations

from twin.deployment import Deployment

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
DIRECT_OPS = (
    "attention_worker_scheduler",
    "ffn_worker_scheduler",
    "npu_attention_to_ffn",
    "npu_attention_worker_combine",
    "npu_ffn_to_attention",
    "npu_ffn_worker_batching",
)
"""Those of AFD's direct transport."""


def needed_ops(deployment: Deployment) -> tuple[str, ...]:
    """The ops that a run of ``deployment`` needs."""
    return (*NEEDED_OPS, *(DIRECT_OPS if deployment.is_direct else ()))
