"""Kernels of a profile as our ops: shapes, types, and reasons where the row says too little."""

from __future__ import annotations

import pytest

from calibration.profiles.kernels import Kernel
from calibration.profiles.mapping import Context, UnmappedTally, map_kernel, type_of
from calibration.profiles.tensors import parse_tensors
from hardware_models.demand import OpSpec
from hardware_models.ops import (
    BatchMatMul,
    Combine,
    Dispatch,
    GatingTopK,
    GqaAttention,
    GroupedMatMul,
    GroupedMatMulSwigluQuant,
    HcclCollective,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    QuantMatMul,
    RowOp,
    Sample,
)


def kernel(
    type_: str, shapes: str = "", dtypes: str = "", out: str = "", name: str = "", us: float = 1.0
) -> Kernel:
    return Kernel(
        2, name or f"aclnn{type_}", type_, "AI_CORE", "2", "1", 0, 0.0, us, 0.0, 24, 0,
        parse_tensors(shapes, dtypes, ""), parse_tensors(out, dtypes, ""), {},
    )  # fmt: skip


W = ("w1", "w2", "w3", "w4")


@pytest.mark.parametrize(
    ("row", "spec"),
    [
        (kernel("MatMulV3", "64,512;512,128", "DT_BF16;DT_BF16", "64,128"),
         MatMul(64, 512, 128, "bf16", "w", "nd")),
        (kernel("MatMulV2", "64,512;128,512", "FLOAT;FLOAT", "64,128"),
         MatMul(64, 512, 128, "fp32", "w", "nd")),
        (kernel("MatMul", "512,64;512,128", "FLOAT16;FLOAT16", "64,128"),
         MatMul(64, 512, 128, "bf16", "w", "nd")),
        (kernel("MatMulV2", "64,500;9,32,16,16", "DT_BF16;DT_BF16", "64,130"),
         MatMul(64, 500, 130, "bf16", "w")),
        (kernel("MatMulV2", "64,512;8,32,16,16", "DT_BF16;DT_BF16"),
         MatMul(64, 512, 128, "bf16", "w")),
        (kernel("QuantBatchMatmulV3", "64,512;512,128;128;;64", "INT8;INT8;FLOAT;;FLOAT"),
         QuantMatMul(64, 512, 128, "w", "vector")),
        (kernel("QuantBatchMatmulV3", "64,512;512,128;128", "INT8;INT8;UINT64"),
         QuantMatMul(64, 512, 128, "w", "static")),
        (kernel("TransposeBatchMatMul", "40,64,512;64,512,128", "DT_BF16;DT_BF16", "40,64,128"),
         BatchMatMul(64, 40, 512, 128, "bf16", "w")),
        (kernel("BatchMatMulV2", "8,40,64;8,128,64", "FLOAT;FLOAT", "8,40,128"),
         BatchMatMul(8, 40, 64, 128, "fp32", "w")),
        (kernel("GroupedMatmul", "96,512;16,512,256", "INT8;INT8"),
         GroupedMatMul(96.0, 512, 256, 16.0, "int8", "w")),
        (kernel("GroupedMatmulSwigluQuantV2", "96,512;8,256,32,16,32;8,8192;96;8",
                "INT8;INT8;FLOAT;FLOAT;INT64", "96,4096"),
         GroupedMatMulSwigluQuant(96.0, 512, 8192, 8.0, "w")),
        (kernel("GroupedMatmulSwigluQuant", "96,512;8,512,256;8;8,256;96",
                "INT8;INT8;INT64;FLOAT;FLOAT", "96,128"),
         GroupedMatMulSwigluQuant(96.0, 512, 256, 8.0, "w")),
        (kernel("AddRmsNormQuant", "32,6144;32,6144;6144;6144;6144", "DT_BF16;DT_BF16;DT_BF16"),
         RowOp("add_rms_norm_quant", 32, 6144)),
        (kernel("AddRmsNormDynamicQuant", "32,6144;32,6144;6144", "DT_BF16;DT_BF16;DT_BF16"),
         RowOp("add_rms_norm_quant", 32, 6144)),
        (kernel("MoeGatingTopK", "32,768", "FLOAT"), GatingTopK(32, 768)),
        (kernel("ArgMaxV2", "32,131072", "FLOAT"), Sample(32, 131072)),
        (kernel("RmsNorm", "32,6144;6144", "DT_BF16;DT_BF16"), RowOp("rms_norm", 32, 6144)),
        (kernel("Softmax", "32,64", "FLOAT"), RowOp("softmax", 32, 64, 4)),
        (kernel("Cast", "32,4096", "FLOAT"), RowOp("cast", 32, 4096, 4)),
        (kernel("GatherV2", "131072,6144;64;1", "DT_BF16;INT64;INT64"), RowOp("gather", 64, 6144)),
        (kernel("MlaPrologV3", "40,6144;6144,1536;1536,12288;64,128,512;6144,576",
                "DT_BF16;DT_BF16;DT_BF16;DT_BF16;DT_BF16"),
         MlaProlog(40, 6144, 1536, 512, 64, 128, 64, "bf16", W)),
        (kernel("FusedInferAttentionScore", "20,2,64,512;9,128,512;9,128,512;20,2,64,64",
                "DT_BF16;DT_BF16;DT_BF16;DT_BF16"),
         MlaDecodeAttention(20, 2, 64, 4096, 512, 64, "bf16")),
        (kernel("FusedInferAttentionScoreV2", "24,16,128;900,128,256;900,128,256;24", "DT_BF16"),
         GqaAttention(24, 1, 16, 2, 4096, 128, False, "bf16")),
        (kernel("MoeDistributeDispatchV2", "32,6144;32,12", "DT_BF16;INT32"),
         Dispatch(384.0, 32, 6144)),
        (kernel("MoeDistributeCombineV2", "768,6144;32,12", "DT_BF16;INT32"),
         Combine(384.0, 32, 6144)),
        (kernel("hcom_allReduce_", name="hcom_allReduce__586_0_1"),
         HcclCollective("all_reduce", 8, pytest.approx(16.388e6, rel=3e-3))),
    ],
    ids=lambda value: value.type if isinstance(value, Kernel) else "",
)  # fmt: skip
def test_a_row_that_says_enough_is_a_spec(row: Kernel, spec: OpSpec) -> None:
    # The all-reduce is a real one: 4,097,000 fp32 numbers over 8 ranks moved 28.65 MB each.
    context = Context(4096, 32, {"hcom_allReduce__586_0_1": 8}, {"hcom_allReduce__586_0_1": 28.647})
    found = map_kernel(row, context)
    assert found.spec == spec
    assert found.kind
    assert not found.reason


@pytest.mark.parametrize(
    ("row", "kind", "reason"),
    [
        (kernel("Conv2D", "1,2,3,4"), "", "no model of kernel Conv2D"),
        (kernel("MatMulAllReduce", "4,4;4,4"), "", "no model"),
        (kernel("MatMulV3"), "matmul", "no input shapes"),
        (kernel("MatMulV3", "4,4", "FLOAT"), "matmul", "too little"),
        (kernel("MatMulV3", "4,0;0,4", "FLOAT;FLOAT"), "matmul", "empty"),
        (kernel("MatMulV3", "4,4;4,4", "COMPLEX64;COMPLEX64"), "matmul", "COMPLEX64"),
        (kernel("FusedInferAttentionScore", "20,2,64,512;9,128,512;9,128,512;20,2,64,64"),
         "gqa_attention", "kv_tokens="),
        (kernel("MoeDistributeDispatch", "32,6144;32,12", "DT_BF16"), "dispatch", "ep="),
        (kernel("hcom_broadcast_", name="hcom_broadcast__1_1"), "hccl_collective", "no collective"),
        (kernel("hcom_allGather_", name="hcom_allGather__1"), "hccl_collective", "not known"),
        (kernel("", name="[red]=cmd()"), "", "no model"),
    ],
)  # fmt: skip
def test_a_row_that_says_too_little_has_a_reason(row: Kernel, kind: str, reason: str) -> None:
    found = map_kernel(row, Context())
    assert (found.kind, found.spec) == (kind, None)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("name", "type_"),
    [("aclnnAdd_AddAiCore_Add", "Add"), ("trans_TransData_0", "TransData"), ("___", ""), ("", "")],
)
def test_level0_has_its_types_in_the_names(name: str, type_: str) -> None:
    row = kernel("", name=name or "x")
    assert type_of(row) == (type_ if name else "x")


def test_what_is_not_mapped_is_listed_with_its_share() -> None:
    tally = UnmappedTally()
    for type_, us in (("Cast", 50.0), ("Conv2D", 10.0), ("Conv2D", 20.0), ("Tril", 20.0)):
        tally.add(map_kernel(kernel(type_, "4,4", "FLOAT", us=us), Context()))
    assert [(u.type, u.count, u.time_us, u.share) for u in tally.rows()] == [
        ("Conv2D", 2, 30.0, 0.3),
        ("Tril", 1, 20.0, 0.2),
    ]
    assert UnmappedTally().rows() == []
