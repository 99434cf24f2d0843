"""Which parameters each kind of kernel has: one form a kind, fitted to that kind's rows."""

from __future__ import annotations

_ROW_OP = ("head_us", "row_us", "us_per_kelement", "gbps", "unaligned_factor")


def _row_op(*kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}_{part}" for kind in kinds for part in _ROW_OP)


PARAMETERS: dict[str, tuple[str, ...]] = {
    "matmul": ("cube_head_us", "matmul_efficiency", "matmul_hbm_gbps", "matmul_nd_factor"),
    "quant_matmul": (
        "cube_head_us", "quant_matmul_efficiency", "quant_matmul_hbm_gbps", "quant_static_us",
        "quant_epilogue_us_per_kelement", "unaligned_cube_factor",
    ),
    "batch_matmul": ("cube_head_us", "batch_matmul_head_factor"),
    "grouped_matmul": (
        "grouped_matmul_head_us", "grouped_matmul_efficiency", "grouped_matmul_hbm_gbps",
        "unaligned_cube_factor",
    ),
    "grouped_matmul_swiglu_quant": _row_op("weight_relayout"),
    "mla_prolog": (
        "mla_prolog_head_us", "mla_prolog_efficiency", "mla_prolog_row_us", "hbm_read_gbps",
    ),
    "mla_attention": (
        "attention_fixed_us", "attention_cube_efficiency", "attention_tile_us",
        "attention_softmax_us_per_kelement", "attention_hbm_gbps",
    ),
    "gqa_attention": (
        "gqa_fixed_us", "gqa_cube_efficiency", "gqa_tile_us", "gqa_softmax_us_per_kelement",
        "gqa_hbm_gbps",
    ),
    "transpose": (
        "transpose_head_us", "transpose_gbps", "transpose_unaligned_factor",
        "transpose_wide_factor",
    ),
    "gating_topk": ("vector_head_us", "gating_row_us"),
    "sample": ("argmax_us_per_melement",),
    "apply_rotary_pos_emb": _row_op("rope", "move"),
    "hccl_collective": (
        "hccl_small_floor_us", "hccl_small_floor_power", "hccl_small_us_per_mb",
        "hccl_small_cost_power", "hccl_large_floor_us", "hccl_large_us_per_mb",
        "hccl_large_cost_power", "hccl_reduce_factor",
    ),
    "bulk_exchange": (
        "moe_bulk_dispatch_gbps", "moe_bulk_dispatch_power", "moe_bulk_combine_gbps",
        "moe_bulk_combine_power", "moe_bulk_dispatch_older_factor",
        "moe_bulk_combine_older_factor",
    ),
    **{
        kind: _row_op(kind)
        for kind in (
            "rms_norm", "add_rms_norm", "add_rms_norm_quant", "dynamic_quant", "static_quant",
            "swiglu", "dequant_swiglu_quant", "softmax", "kv_norm_rope", "rope", "activation",
            "cast", "add", "move", "select", "gather", "re_routing",
            "finalize_routing", "sort", "exp",
        )
    },
}  # fmt: skip
"""Parameters by kind; kinds that are not here have none of their own to fit (dispatch and
combine, whose parameters the steps of LongCat-Flash set)."""
