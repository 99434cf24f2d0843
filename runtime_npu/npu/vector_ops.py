"""Norms, SwiGLU, quantisation and prefetch.  T counts rows; floats are bf16 or fp16."""

from __future__ import annotations

import torch

from runtime_npu.npu.contract import Contract, call

FLOATS = (torch.bfloat16, torch.float16)
NORM_DTYPES = (*FLOATS, torch.float32)


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Norm of ``x`` [T, H] times ``gamma`` [H]: [T, H]."""
    check = Contract("npu_rms_norm")
    check.tensor("x", x, (None, None), *NORM_DTYPES)
    check.tensor("gamma", gamma, x.shape[-1:], x.dtype)
    normed: torch.Tensor = call("npu_rms_norm", x, gamma, epsilon)[0]
    return normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of the sum of ``x`` and ``residual`` [T, H] times ``gamma`` [H], the sum)."""
    check = Contract("npu_add_rms_norm")
    check.tensor("x", x, (None, None), *NORM_DTYPES)
    check.tensor("residual", residual, x.shape, x.dtype)
    check.tensor("gamma", gamma, x.shape[-1:], x.dtype)
    normed, _, total = call("npu_add_rms_norm", x, residual, gamma, epsilon)
    return normed, total


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu(left half) x right half of ``x`` [T, 2 n]: [T, n]."""
    check = Contract("npu_swiglu")
    check.tensor("x", x, (None, None), *NORM_DTYPES)
    check.divides("x.shape[1] halves", 2, x.shape[1], "columns")
    halved: torch.Tensor = call("npu_swiglu", x)
    return halved


def dynamic_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` [T, H] as int8 with a scale for each row: ([T, H] int8, [T] fp32)."""
    check = Contract("npu_dynamic_quant")
    check.tensor("x", x, (None, None), *FLOATS)
    quantised, scale = call("npu_dynamic_quant", x)
    return quantised, scale


def dequant_swiglu_quant(
    x: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor,
    counts: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """SwiGLU between two int8 products: ([T, n] int8, [T] fp32).

    ``x`` [T, 2 n] int32 sums, gate before up; ``activation_scale`` [T] fp32.  With ``counts``
    [experts] int64 the rows are grouped and ``weight_scale`` is [experts, 2 n] fp32, else [2 n].
    """
    check = Contract("npu_dequant_swiglu_quant")
    check.tensor("x", x, (None, None), torch.int32)
    rows, width = x.shape
    check.divides("x.shape[1] halves", 2, width, "columns")
    check.tensor("activation_scale", activation_scale, (rows,), torch.float32)
    if counts is None:
        check.tensor("weight_scale", weight_scale, (width,), torch.float32)
    else:
        check.tensor("counts", counts, (None,), torch.int64)
        check.tensor("weight_scale", weight_scale, (len(counts), width), torch.float32)
    quantised, scale = call(
        "npu_dequant_swiglu_quant",
        x,
        weight_scale=weight_scale,
        activation_scale=activation_scale,
        group_index=counts,
        activate_left=True,
        quant_mode=1,
    )
    return quantised, scale


def prefetch(weight: torch.Tensor, after: torch.Tensor, max_bytes: int) -> int:
    """Bring ``max_bytes`` of ``weight`` to L2 once ``after`` is there; the bytes asked for.

    A size above the weight's is clipped to it; 0 emits nothing.
    """
    check = Contract("npu_prefetch")
    check.holds(max_bytes >= 0, "max_size", max_bytes, "a number of bytes from 0")
    asked = min(max_bytes, weight.numel() * weight.element_size())
    if asked:
        call("npu_prefetch", weight, after, asked)
    return asked
