"""Products.  Weights lie as the kernels read them: [k, n], the inner size first."""

from __future__ import annotations

import torch

from runtime_npu.npu.contract import Contract, call
from runtime_npu.npu.vector_ops import FLOATS, NORM_DTYPES

IN_ORDER, SWAPPED = (0, 1, 2), (1, 0, 2)


def transpose_batchmatmul(
    x: torch.Tensor, weight: torch.Tensor, *, heads_first: bool
) -> torch.Tensor:
    """Per head, ``x`` by ``weight`` [heads, k, n]: [T, heads, n].

    ``x`` is [heads, T, k] where ``heads_first``, else [T, heads, k].
    """
    check = Contract("npu_transpose_batchmatmul")
    heads, inner, _ = weight.shape if weight.dim() == 3 else (None, None, None)
    check.tensor("weight", weight, (None, None, None), *FLOATS)
    sizes = (heads, None, inner) if heads_first else (None, heads, inner)
    check.tensor("x", x, sizes, weight.dtype)
    product: torch.Tensor = call(
        "npu_transpose_batchmatmul",
        x,
        weight,
        perm_x1=list(IN_ORDER if heads_first else SWAPPED),
        perm_x2=list(IN_ORDER),
        perm_y=list(SWAPPED),
    )
    return product


def matmul(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x`` [T, k] by ``weight`` [k, n] of the same dtype: [T, n]."""
    check = Contract("matmul")
    check.tensor("x", x, (None, None), *NORM_DTYPES)
    check.tensor("weight", weight, (x.shape[1], None), x.dtype)
    return torch.matmul(x, weight)


def quant_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    row_scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``x`` [T, k] int8 by ``weight`` [k, n] int8, dequantised: [T, n] of ``dtype``.

    ``scale`` [n] has ``dtype`` or fp32, ``row_scale`` [T] is fp32.
    """
    check = Contract("npu_quant_matmul")
    check.tensor("x", x, (None, None), torch.int8)
    check.tensor("weight", weight, (x.shape[1], None), torch.int8)
    check.one_of("output_dtype", dtype, *FLOATS)
    check.tensor("scale", scale, (weight.shape[1],), dtype, torch.float32)
    check.tensor("row_scale", row_scale, (x.shape[0],), torch.float32)
    product: torch.Tensor = call(
        "npu_quant_matmul", x, weight, scale, pertoken_scale=row_scale, output_dtype=dtype
    )
    return product


def quant_matmul_sums(x: torch.Tensor, weight: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """The int32 sums of ``x`` [T, k] int8 by ``weight`` [k, n] int8: [T, n].

    ``ones`` [n] fp32 stands in the place of the scale, which comes with the next op.
    """
    check = Contract("npu_quant_matmul")
    check.tensor("x", x, (None, None), torch.int8)
    check.tensor("weight", weight, (x.shape[1], None), torch.int8)
    check.tensor("scale", ones, (weight.shape[1],), torch.float32)
    sums: torch.Tensor = call("npu_quant_matmul", x, weight, ones, output_dtype=torch.int32)
    return sums


def grouped_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    counts: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    row_scale: torch.Tensor | None = None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Each expert's rows of ``x`` [T, k] by its ``weight`` [experts, k, n]: [T, n] of ``dtype``.

    ``counts`` [experts] int64.  Floats keep their dtype.  int8 gives int32 sums, or with
    ``scale`` [experts, n] and ``row_scale`` [T] fp32 a float.
    """
    check = Contract("npu_grouped_matmul")
    check.tensor("x", x, (None, None), *FLOATS, torch.int8)
    check.tensor("weight", weight, (None, x.shape[1], None), x.dtype)
    experts, _, width = weight.shape
    check.tensor("counts", counts, (experts,), torch.int64)
    given = tuple(tensor is not None for tensor in (scale, row_scale))
    check.one_of("scale and row_scale given", given, (True, True), (False, False))
    if scale is not None and row_scale is not None:
        check.one_of("x.dtype", x.dtype, torch.int8)
        check.one_of("output_dtype", dtype, *FLOATS)
        check.tensor("scale", scale, (experts, width), dtype)
        check.tensor("row_scale", row_scale, (x.shape[0],), torch.float32)
    else:
        check.one_of("output_dtype", dtype, torch.int32 if x.dtype == torch.int8 else x.dtype)
    product: torch.Tensor = call(
        "npu_grouped_matmul",
        [x],
        [weight],
        scale=None if scale is None else [scale],
        per_token_scale=None if row_scale is None else [row_scale],
        group_list=counts,
        split_item=3,
        group_type=0,
        group_list_type=1,
        output_dtype=dtype,
    )[0]
    return product
