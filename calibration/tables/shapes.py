"""From kernel names and tensor shapes to op specs, as profilers print them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hardware_models.demand import OpSpec
from hardware_models.ops import (
    BatchMatMul,
    GroupedMatMul,
    GroupedMatMulSwigluQuant,
    MatMul,
    QuantMatMul,
    RowOp,
)
from hardware_models.ops.matmul import Epilogue, Layout
from hardware_models.ops.tiling import DType
from hardware_models.ops.vector import RowKind

Shape = tuple[int, ...]

# Elements that one vector core takes at a time in an op without rows of its own.
_CHUNK = 4096

_NZ_DIMENSIONS = 4

ROW_KERNELS: dict[str, RowKind] = {
    "RmsNorm": "rms_norm", "LayerNormV3": "rms_norm", "GemmaRmsNorm": "rms_norm",
    "AddRmsNorm": "add_rms_norm", "AddRmsNormBias": "add_rms_norm",
    "InplaceAddRmsNorm": "add_rms_norm", "AddRmsNormCast": "add_rms_norm",
    "AddRmsNormQuant": "add_rms_norm_quant", "AddRmsNormQuantV2": "add_rms_norm_quant",
    "AddRmsNormDynamicQuant": "add_rms_norm_quant",
    "AddRmsNormDynamicQuantV2": "add_rms_norm_quant",
    "DynamicQuant": "dynamic_quant", "DynamicQuantV2": "dynamic_quant",
    "AscendQuant": "static_quant", "AscendQuantV2": "static_quant",
    "SwiGlu": "swiglu", "SwiGluQuant": "dequant_swiglu_quant",
    "DequantSwigluQuant": "dequant_swiglu_quant", "DequantSwigluQuantV2": "dequant_swiglu_quant",
    "Softmax": "softmax", "SoftmaxV2": "softmax", "LogSoftmaxV2": "softmax",
    "KvRmsNormRopeCache": "kv_norm_rope", "KvRmsNormRopeCacheV2": "kv_norm_rope",
    "split_qkv_rmsnorm_rope_kernel": "kv_norm_rope",
    "InterleaveRope": "rope", "RotaryMul": "rope", "RotaryPositionEmbedding": "rope",
    "ApplyRotaryPosEmb": "rope", "RopeWithSinCosCache": "rope",
    "Sort": "sort", "SortV2": "sort", "TopKV2": "sort", "TopK": "sort",
    "ReshapeAndCacheNdKernel": "gather", "ReshapeAndCache": "gather", "ScatterPaKvCache": "gather",
    "MoeReRouting": "re_routing", "MoeInitRouting": "re_routing", "MoeInitRoutingV2": "re_routing",
    "MoeInitRoutingV3": "re_routing", "MoeInitRoutingQuantV2": "re_routing",
    "MoeTokenPermute": "re_routing",
    "MoeFinalizeRouting": "finalize_routing", "MoeFinalizeRoutingV2": "finalize_routing",
    "MoeTokenUnpermute": "finalize_routing",
}  # fmt: skip
"""Kernels that work row by row: the first shape's last dimension is the row."""

FLAT_KERNELS: dict[str, RowKind] = {
    **dict.fromkeys(
        ("Cast", "Fill", "ZerosLike", "OnesLike", "Range", "Arange", "MemSet", "Less", "Equal",
         "Greater", "GreaterEqual", "LessEqual", "NotEqual", "LogicalAnd", "LogicalOr",
         "LogicalNot", "Shape", "Log", "Abs"), "cast"),
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "RealDiv", "Div", "Neg", "Adds", "Muls", "Maximum", "Minimum",
         "AddV2", "Addcmul", "Axpy", "Pow", "Sqrt", "Rsqrt", "Square", "Reciprocal", "FloorDiv",
         "FloorMod", "Cumsum", "ReduceSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceAny"),
        "add"),
    **dict.fromkeys(
        ("Sigmoid", "Silu", "Swish", "Gelu", "GeluV2", "FastGelu", "Exp", "Tanh", "Relu", "Sin",
         "Cos", "SoftplusV2"), "activation"),
    **dict.fromkeys(
        ("TensorMove", "Slice", "StridedSlice", "StridedSliceD", "BroadcastTo", "BroadcastToD",
         "Tile", "TileD", "Concat", "ConcatD", "ConcatV2D", "Split", "SplitD", "SplitV", "SplitVD",
         "Pack", "ViewCopy", "AsStrided", "RepeatInterleaveV2", "PadV3", "Identity", "TensorCopy"),
        "move"),
    **dict.fromkeys(
        ("MaskedFill", "Select", "SelectV2", "Where", "ApplyTopKTopPCustom", "ApplyTopKTopP"),
        "select"),
    **dict.fromkeys(("TransData", "Transpose", "TransposeD"), "transpose"),
}  # fmt: skip
"""Kernels without rows of their own: the largest operand's elements count."""


def elements(shape: Shape) -> int:
    """Elements of a shape, at least one."""
    return max(1, math.prod(shape))


def flat(op: RowKind, count: int, element_bytes: int = 2) -> RowOp:
    """``count`` elements in chunks, dealt over the vector cores."""
    rows = math.ceil(count / _CHUNK)
    width = math.ceil(count / rows / 32) * 32
    return RowOp(op, rows, width, element_bytes)


def transposed(shape: Shape, perm: Sequence[int] | None = None, element_bytes: int = 2) -> RowOp:
    """A transpose of ``shape``; one that keeps the last axis only moves whole rows.

    Rows stay unaligned where the last axis of the input or of the output is.
    """
    order = list(perm) if perm is not None else list(range(len(shape)))[::-1]
    if perm is not None and order[-1] in (-1, len(shape) - 1):
        return by_row("move", shape, element_bytes)
    for run in (shape[-1], shape[order[-1]]):
        if run * element_bytes % 32:
            # An odd number of runs is as unaligned as one.
            width = run * (max(1, _CHUNK // run) | 1)
            return RowOp("transpose", math.ceil(elements(shape) / width), width, element_bytes)
    return flat("transpose", elements(shape), element_bytes)


def by_row(op: RowKind, shape: Shape, element_bytes: int = 2) -> RowOp:
    """Rows of a tensor's last dimension."""
    return RowOp(op, elements(shape[:-1]), shape[-1], element_bytes)


def matmul(x: Shape, w: Shape, dtype: DType) -> MatMul:
    """``[.., k] x w``; w in any layout (ND, transposed or NZ): n follows from its size."""
    k = x[-1]
    return MatMul(elements(x[:-1]), k, columns(w, k), dtype, "w", layout_of(w))


def layout_of(w: Shape) -> Layout:
    """A plain product's weight: four dimensions or more are the blocks of FRACTAL_NZ."""
    return "nz" if len(w) >= _NZ_DIMENSIONS else "nd"


def columns(w: Shape, k: int, experts: int = 1) -> int:
    """Columns of a weight from its size: K is padded to 16 in NZ layouts."""
    padded = math.ceil(k / 16) * 16 if len(w) >= _NZ_DIMENSIONS else k
    return max(1, elements(w) // (padded * experts))


def quant_matmul(shapes: Sequence[Shape]) -> QuantMatMul:
    """Per-token where the fourth tensor has a scale a row (``n;m`` behind the weight)."""
    x, w = shapes[0], shapes[1]
    m, k = elements(x[:-1]), x[-1]
    n = columns(w, k)
    scales = [s for s in shapes[2:] if s]
    per_token = any(scale == (m,) for scale in scales[1:])
    epilogue: Epilogue = "vector" if per_token else "static"
    return QuantMatMul(m, k, n, "w", epilogue)


def batch_matmul(x: Shape, w: Shape) -> BatchMatMul:
    """``w`` is [batch, k, n]; the batch of x may stand in front or second."""
    batch, k, n = w[-3], w[-2], w[-1]
    return BatchMatMul(batch, max(1, elements(x) // (batch * k)), k, n, "bf16", "w")


def grouped_matmul(x: Shape, w: Shape) -> GroupedMatMul:
    """Experts along w's first dimension; rows are taken as spread evenly over them."""
    rows, k = elements(x[:-1]), x[-1]
    experts = w[0]
    dtype: DType = "int8" if w[-1] == 32 and len(w) >= 5 else "bf16"
    active = float(min(experts, rows))
    return GroupedMatMul(float(rows), k, columns(w, k, experts), active, dtype, "w")


def grouped_matmul_swiglu_quant(x: Shape, w: Shape) -> GroupedMatMulSwigluQuant:
    """As :func:`grouped_matmul`; the weight holds gate and up, always int8."""
    product = grouped_matmul(x, w)
    return GroupedMatMulSwigluQuant(product.rows, product.k, product.n, product.active_experts, "w")


def vector_kernel(name: str, shapes: Sequence[Shape], element_bytes: int = 2) -> OpSpec | None:
    """The spec of a vector kernel by its name, None where no kernel of that name is known."""
    present = [s for s in shapes if s]
    if name in ROW_KERNELS and present:
        return by_row(ROW_KERNELS[name], present[0], element_bytes)
    if name in FLAT_KERNELS and present:
        return flat(FLAT_KERNELS[name], max(elements(s) for s in present), element_bytes)
    if name.startswith(("Gather", "EmbeddingLookup")) and len(present) > 1:
        return RowOp("gather", elements(present[1]), elements(present[0][1:]), element_bytes)
    if name.startswith(("Index", "Scatter", "IndexPut")) and len(present) > 1:
        return RowOp("gather", elements(present[-1]), present[0][-1], element_bytes)
    return None
