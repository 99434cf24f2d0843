"""How an op looks in an Ascend profile: kernel type, operands, core type, collective.

Source of the types: the kernels of served models on A3, and CANN's operator list; an op that
no CANN kernel matches keeps its own kind in CamelCase and no operands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hardware_models.demand import Cores, OpSpec
from hardware_models.ops import (
    BatchMatMul,
    BulkExchange,
    Collective,
    Combine,
    Dispatch,
    Embedding,
    ExpertReceive,
    ExpertSend,
    GatingTopK,
    GroupedMatMul,
    GroupedMatMulSwigluQuant,
    HcclCollective,
    HostLaunch,
    HostRead,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    PrefetchWeight,
    QuantMatMul,
    Receive,
    RowOp,
    Sample,
    Send,
    VectorReceive,
    VectorSend,
)
from hardware_models.ops.matmul import Epilogue
from hardware_models.ops.tiling import ELEMENT_BYTES, DType
from hardware_models.ops.vector import RowKind

Operands = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and type of each operand; an absent one has an empty shape."""

_DTYPES: dict[DType, str] = {"bf16": "DT_BF16", "fp32": "FLOAT", "int8": "INT8"}
_BY_BYTES = {1: "INT8", 2: "DT_BF16", 4: "FLOAT", 8: "INT64"}
_ROW_TYPES: dict[RowKind, str] = {
    "rms_norm": "RmsNorm", "add_rms_norm": "AddRmsNorm", "dynamic_quant": "DynamicQuant",
    "add_rms_norm_quant": "AddRmsNormDynamicQuant", "static_quant": "AscendQuantV2",
    "swiglu": "SwiGlu", "dequant_swiglu_quant": "DequantSwigluQuant", "softmax": "SoftmaxV2",
    "kv_norm_rope": "KvRmsNormRopeCache", "rope": "RotaryPositionEmbedding",
    "activation": "Swish", "cast": "Cast", "add": "Add", "move": "TensorMove",
    "select": "SelectV2", "transpose": "Transpose", "re_routing": "MoeReRouting",
    "finalize_routing": "MoeFinalizeRoutingV2", "sort": "Sort", "exp": "Exp",
    "weight_relayout": "TransData",
}  # fmt: skip
_HCOM = {
    "all_gather": "hcom_allGather", "reduce_scatter": "hcom_reduceScatter",
    "all_to_all": "hcom_alltoallv", "all_reduce": "hcom_allReduce",
    "dispatch": "hcom_alltoallv", "combine": "hcom_alltoallv",
}  # fmt: skip
_QUANT_OUTPUTS: dict[Epilogue, str] = {
    "vector": "DT_BF16", "static": "DT_BF16", "fixpipe": "FLOAT16", "int32": "INT32",
}  # fmt: skip
_TOPK_COLUMNS = 1
_FRACTAL_ROWS, _FRACTAL_BYTES = 16, 32


_Product = MatMul | QuantMatMul | BatchMatMul | GroupedMatMul | GroupedMatMulSwigluQuant


@dataclass(frozen=True, slots=True)
class KernelText:
    """Type and operands of a kernel row; ``nz`` counts the inputs that are FRACTAL_NZ."""

    type: str
    inputs: Operands = ()
    outputs: Operands = ()
    nz: tuple[int, ...] = ()


def collective_of(spec: OpSpec) -> str:
    """The collective's name in a profile (``hcom_allGather``), empty where it is none."""
    if isinstance(spec, Collective | HcclCollective | BulkExchange):
        return _HCOM[spec.op]
    if isinstance(spec, Send | VectorSend | ExpertSend):
        return "hcom_send"
    if isinstance(spec, Receive | VectorReceive | ExpertReceive):
        return "hcom_receive"
    return ""


def is_kernel(spec: OpSpec) -> bool:
    """Whether a profiler lists the op among the kernels: host calls and prefetches are not."""
    return not isinstance(spec, HostLaunch | HostRead | PrefetchWeight)


def core_type(cores: Cores) -> str:
    """The profiler's word for the cores that a launch takes."""
    if cores.aic and cores.aiv:
        return "MIX_AIC"
    return "AI_CORE" if cores.aic else "AI_VECTOR_CORE"


def blocks(cores: Cores) -> tuple[int, int]:
    """Block Dim and Mix Block Dim: cube cores first where there are any."""
    return (cores.aic, cores.aiv) if cores.aic else (cores.aiv, 0)


def kernel_text(spec: OpSpec) -> KernelText:
    """Type and operands of an op that is no collective."""
    if isinstance(spec, RowOp):
        return _row_op(spec)
    if isinstance(spec, _Product):
        return _product(spec)
    if isinstance(spec, MlaProlog | MlaDecodeAttention):
        return _attention(spec)
    if isinstance(spec, Dispatch | Combine):
        ids = max(1, round(spec.rows))
        rows = ((ids, spec.hidden), "DT_BF16"), ((ids, _TOPK_COLUMNS), "INT32")
        return KernelText(f"MoeDistribute{type(spec).__name__}V2", rows)
    if isinstance(spec, GatingTopK | Sample | Embedding):
        return _by_row(spec)
    return KernelText("".join(part.capitalize() for part in spec.kind.split("_")))


def _by_row(spec: GatingTopK | Sample | Embedding) -> KernelText:
    if isinstance(spec, Embedding):
        return _gather(spec.rows, spec.width, "DT_BF16")
    if isinstance(spec, GatingTopK):
        return KernelText("MoeGatingTopK", (((spec.rows, spec.width), "FLOAT"),))
    return KernelText("ArgMaxV2", (((spec.rows, spec.width), "DT_BF16"),))


def _row_op(spec: RowOp) -> KernelText:
    dtype = _BY_BYTES[spec.element_bytes]
    if spec.op == "gather":
        return _gather(spec.rows, spec.width, dtype)
    return KernelText(_ROW_TYPES[spec.op], (((spec.rows, spec.width), dtype),))


def _gather(rows: int, width: int, dtype: str) -> KernelText:
    inputs = (((1, width), dtype), ((rows,), "INT64"))
    return KernelText("GatherV2", inputs, (((rows, width), dtype),))


def _matmul(spec: MatMul) -> KernelText:
    dtype, fractal = _DTYPES[spec.dtype], _FRACTAL_BYTES // ELEMENT_BYTES[spec.dtype]
    x, out = ((spec.m, spec.k), dtype), (((spec.m, spec.n), dtype),)
    if spec.layout == "nd":
        return KernelText("MatMulV3", (x, ((spec.n, spec.k), dtype)), out)
    blocks = (
        math.ceil(spec.n / fractal), math.ceil(spec.k / _FRACTAL_ROWS), _FRACTAL_ROWS, fractal
    )  # fmt: skip
    return KernelText("MatMulV3", (x, (blocks, dtype)), out, nz=(1,))


def _grouped(spec: GroupedMatMul | GroupedMatMulSwigluQuant) -> KernelText:
    rows, experts = max(1, round(spec.rows)), max(1, round(spec.active_experts))
    dtype = _DTYPES[spec.dtype] if isinstance(spec, GroupedMatMul) else "INT8"
    inputs: Operands = ((rows, spec.k), dtype), ((experts, spec.k, spec.n), dtype)
    if isinstance(spec, GroupedMatMul):
        return KernelText("GroupedMatmul", inputs, (((rows, spec.n), "DT_BF16"),))
    scales: Operands = ((experts, spec.n), "FLOAT"), ((rows,), "FLOAT"), ((experts,), "INT64")
    outputs: Operands = ((rows, spec.n // 2), "INT8"), ((rows,), "FLOAT")
    return KernelText("GroupedMatmulSwigluQuant", (*inputs, *scales), outputs)


def _product(spec: _Product) -> KernelText:
    if isinstance(spec, MatMul):
        return _matmul(spec)
    if isinstance(spec, GroupedMatMul | GroupedMatMulSwigluQuant):
        return _grouped(spec)
    if isinstance(spec, QuantMatMul):
        scale: Operands = (((spec.n,), "FLOAT"),)
        if spec.epilogue == "vector":
            scale = (*scale, ((), ""), ((spec.m,), "FLOAT"))
        inputs = ((spec.m, spec.k), "INT8"), ((spec.k, spec.n), "INT8"), *scale
        outputs = (((spec.m, spec.n), _QUANT_OUTPUTS[spec.epilogue]),)
        return KernelText("QuantBatchMatmulV3", inputs, outputs)
    dtype = _DTYPES[spec.dtype]
    x, w = (spec.m, spec.batch, spec.k), (spec.batch, spec.k, spec.n)
    out = (spec.m, spec.batch, spec.n)
    return KernelText("TransposeBatchMatMul", ((x, dtype), (w, dtype)), ((out, dtype),))


def _attention(spec: MlaProlog | MlaDecodeAttention) -> KernelText:
    dtype = _DTYPES[spec.dtype]
    if isinstance(spec, MlaProlog):
        shapes: tuple[tuple[int, ...], ...] = (
            (spec.rows, spec.hidden),
            (spec.hidden, spec.q_rank),
            (spec.q_rank, spec.heads * (spec.nope + spec.rope)),
            (spec.heads, spec.nope, spec.kv_rank),
            (spec.hidden, spec.kv_rank + spec.rope),
        )
        return KernelText("MlaPrologV3", tuple((shape, dtype) for shape in shapes))
    query = (spec.sequences, spec.rows, spec.heads)
    cache = (spec.sequences, spec.kv_tokens, spec.kv_rank)
    shapes = ((*query, spec.kv_rank), cache, cache, (*query, spec.rope))
    inputs = tuple((shape, dtype) for shape in shapes)
    return KernelText("FusedInferAttentionScore", inputs, (((*query, spec.kv_rank), dtype),))
