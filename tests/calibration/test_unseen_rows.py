"""Rows that nobody has seen: modelled or listed with a reason; broken tables name their fault."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.comparison import compare_kernels, compare_steps
from calibration.kernel import KernelRow
from calibration.measurement import Measurement
from calibration.tables import Row, load_rows
from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware

DIE = load_hardware("a3-752t")

IN_NETWORK = "scenario,kernel,count,mean_us,std_us,cv,input_shapes,hardware,source"
KERNELS = (
    ("QuantBatchMatmulV3(WeightNz)", "256,7168;128,448,16,32;4096;256", 76.5),
    ("MatMulV2(NDNZ)", "16,5120;320,48,16,16", 11.0),
    ("MatMulV2", "5,7168;16160,7168", 221.0),
    ("TransposeBatchMatMul", "16,5,512;16,512,128", 12.5),
    ("GroupedMatmul", "512,7168;16,128,448,16,32;16", 200.0),
    ("GroupedMatmulSwigluQuant", "512,7168;16,128,448,16,32;16,4096;512;16", 200.0),
    ("FusedInferAttentionScore(MLA)", "5,16,1,512;892,1,128,512;892,1,128,512;;;;5", 59.8),
    ("FusedInferAttentionScore(GQA paged)", "16,4,128;12308,128,128;12308,128,128;;9;16", 61.0),
    ("KvRmsNormRopeCache", "5,1,1,576;512;5,1,1,64;5,1,1,64;5", 4.6),
    ("MoeGatingTopK", "256,256;256", 35.6),
    ("MoeDistributeDispatchV2", "128,7168;128,8", 150.0),
    ("DequantSwigluQuant", "256,4096", 17.0),
    ("AddRmsNormQuant", "256,7168;256,7168;7168", 24.0),
    ("GatherV3", "81920,128;16;1", 5.4),
    ("Slice", "2048,16,256;3;3", 10.2),
    ("NeverHeardOf", "5,129280", 4.0),
)
OP_LATENCY = (
    "hw,level,op,case_id,input_shape,dtype,attrs,baseline_perf_us,t_hw_us,roofline_fraction,"
    "baseline_is_placeholder_10x,note,source"
)
OPS = (
    ("transpose", [[2048, 2048]], ["float32"], {"perm": [1, 0]}, "Transpose×1", 40.0),
    ("transpose", [[8, 128, 64]], ["int64"], {"perm": [1, 0, 2]}, "Transpose×1", 40.0),
    ("gather", [[512, 256], [128, 256]], ["float16", "int32"], {"dim": 1}, "GatherV2×1", 20.0),
    ("gather", [[4096, 4096], [2048, 4096]], ["bfloat16", "int32"], {"dim": 0},
     "Transpose×3 + GatherElementsV2×1", 235.0),
    ("swi_glu", [[254, 16383]], ["bfloat16"], {"dim": 0}, "Slice×1 + SwiGlu×1", 31.0),
    ("moe_gating_top_k_softmax", [[64, 8]], ["float16"], {"k": 2}, "MoeGatingTopKSoftmax×1", 7.9),
    ("quant_matmul", [[1024, 3584], [3584, 4608], [4608], None, None, [4608]],
     ["int8", "int8", "float32", None, None, "int32"], {}, "QuantBatchMatmulV3×1", 84.0),
    ("grouped_matmul", [[512, 4096], [4, 4096, 2048]], ["float16", "float16"],
     {"group_list": [100, 200, 300, 512]}, "GroupedMatmul×1", 200.0),
    ("grouped_matmul_swiglu_quant", [[256, 4096], [2, 4096, 4096], [2, 4096], [256]],
     ["int8", "int8", "float32", "float32"], {"group_list": [100, 256]},
     "TransData×1 + GroupedMatmulSwigluQuantV2×1", 120.0),
    ("gqa", [[16, 1, 32, 128], [16, 2048, 8, 128], [16, 2048, 8, 128]], ["float16"] * 3,
     {"is_causal": False}, "FusedInferAttentionScore×1", 146.0),
    ("mla", [[32, 1, 128, 512], [32, 1, 128, 64], [32, 2048, 1, 512], [32, 2048, 1, 64]],
     ["float16"] * 4, {}, "FusedInferAttentionScore×1", 188.0),
    ("apply_rotary_pos_emb", [[16, 61, 16, 128], [16, 61, 16, 128], [61, 64], [61, 64]],
     ["float16"] * 4, {"layout": 0}, "ConcatD×2 + ApplyRotaryPosEmb×1", 41.0),
    ("scatter", [[64, 64]] * 3, ["int32"] * 3, {"dim": 0}, "Scatter×1", 30.0),
    ("never_heard_of", [[64, 64]], ["float16"], {}, "X×1", 30.0),
)  # fmt: skip
HCCL = "op,num_dies,message_bytes,bench_us,production_profiler_us,note,source"
DEEPEP = "mode,op,ep,latency_us,bw_GBps,tokens_per_rank,hidden,topk,dtype,source"
CORES = "cube_cores,vector_cores,op,duration_us,setting,source"
END_TO_END = (
    "model,quant,global_batch,seq_len,chips,next_n,afd,tpot_ms,tokens_per_s_per_chip,note,source"
)

sizes = st.sampled_from((1, 2, 3, 5, 8, 13, 16, 17, 64, 100, 128, 257, 1000, 1024, 4096, 7168))
quick = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(header: str, rows: list[list[object]]) -> list[Row]:
    text = io.StringIO()
    csv.writer(text).writerows([header.split(","), *rows])
    return read_bytes(text.getvalue().encode())


def read_bytes(data: bytes) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_bytes(data)
        try:
            return load_rows(str(path))
        except InputError as error:
            fault = error
    # The column is the field; file and line are in front of it.
    if not re.match(rf"{re.escape(str(path))}:\d+: \S", str(fault)):
        raise AssertionError(str(fault))
    if "bytes and MACs" in str(fault) and "1000000.0" in str(fault):
        return []  # a shape of more work than a second does
    raise fault


def check(rows: list[Row]) -> None:
    kernels = [row for row in rows if isinstance(row, KernelRow)]
    for compared in compare_kernels(kernels, load_hardware):
        if compared.modelled:
            assert compared.simulated_us is not None
            assert math.isfinite(compared.simulated_us)
            assert compared.simulated_us > 0
            assert compared.has_interval
        else:
            assert compared.reason


@quick
@given(st.sampled_from(KERNELS), st.data())
def test_kernels_in_network_of_any_shape(
    kernel: tuple[str, str, float], data: st.DataObject
) -> None:
    name, shapes, _ = kernel
    changed = re.sub(r"\d+", lambda m: str(data.draw(st.just(int(m[0])) | sizes)), shapes)
    scenario = data.draw(st.sampled_from(("DSv3 decode in4096 out1536 EP32", "other model")))
    row = [scenario, name, 1, 1e6, 1, 0.1, changed, "A3_752T", "here"]
    check(read(IN_NETWORK, [row]))


@quick
@given(st.sampled_from(OPS), st.data())
def test_op_latencies_of_any_shape_type_and_note(
    op: tuple[object, ...], data: st.DataObject
) -> None:
    name, shapes, types, attributes, note, _ = op
    text = re.sub(r"\d+", lambda m: str(data.draw(st.just(int(m[0])) | sizes)), json.dumps(shapes))
    kinds = st.sampled_from(("float16", "bfloat16", "float32", "int8", "int64", "complex64"))
    assert isinstance(types, list)
    drawn = [data.draw(st.just(x) | kinds) if x else x for x in types]
    row = ["910b2", "level1", name, 1, text, json.dumps(drawn), json.dumps(attributes), 1e6, 1,
           0.1, "N", f"baseline_kernels: {note}", "here"]  # fmt: skip
    check(read(OP_LATENCY, [row]))


@quick
@given(
    st.sampled_from(("allGather", "reduceScatter", "allReduce", "allToAll", "broadcast")),
    st.integers(1, 768),
    st.integers(1, 10**9),
)
def test_collectives_of_any_group_and_size(op: str, dies: int, size: int) -> None:
    check(read(HCCL, [[op, dies, size, 1e6, "", "", "here"]]))


@quick
@given(
    st.sampled_from(("normal", "low_latency", "normal-old", "new")),
    st.sampled_from(("dispatch", "combine", "both")),
    st.integers(1, 768),
    st.integers(1, 8192),
    st.integers(1, 16),
)
def test_exchanges_of_any_ep_and_batch(mode: str, op: str, ep: int, tokens: int, topk: int) -> None:
    check(read(DEEPEP, [[mode, op, ep, 1e6, "", tokens, 7168, topk, "INT8", "here"]]))


def steps(rows: list[Row]) -> list[tuple[float | None, str]]:
    measured = [row for row in rows if isinstance(row, Measurement)]
    assert len(measured) == len(rows)
    answer = compare_steps(measured, DIE, [])
    return [(c.simulated_us, c.reason) for c in answer.comparisons]


def test_op_latencies_on_other_core_counts_and_of_other_ops() -> None:
    rows: list[list[object]] = [
        [16, 32, "QBMM1", 17.0, "", "here"],
        [20, 40, "MLAProlog", 50.0, "", "here"],
        [12, 24, "RS", 20.0, "", "here"],
        [24, 24, "FA", 95.0, "", "here"],
        [16, 32, "NeverHeardOf", 17.0, "", "here"],
    ]
    answers = steps(read(CORES, rows))
    assert all(value and 1 < value < 1000 for value, _ in answers[:3])
    assert answers[3][0] is None
    assert "25 aic" in answers[3][1], "a MoE stream beside all cube cores has none left"
    assert answers[4] == (None, "no op NeverHeardOf among those of the main stream")
    more, fewer = (steps(read(CORES, [[c, 2 * c, "QBMM1", 17.0, "", "h"]]))[0][0] for c in (20, 8))
    assert more is not None
    assert fewer is not None
    assert more < fewer
    with pytest.raises(InputError, match="vector_cores"):
        read(CORES, [[24, 49, "FA", 95.0, "", "here"]])


def test_steps_of_other_batches_chips_and_models() -> None:
    def row(**changes: object) -> list[object]:
        base = {"model": "LongCat-Flash", "quant": "W8A8", "batch": 512, "seq": 4608, "chips": 64,
                "next_n": 2, "afd": "no", "tpot": 10.0}  # fmt: skip
        return [*{**base, **changes}.values(), 1.0, "", "here"]

    rows = [
        row(batch=1024, seq=8192),
        row(chips=128, next_n=1),
        row(afd="yes", batch=256),
        row(quant="BF16", next_n=0),
        row(chips=60),
        row(model="Another"),
        row(quant="W4A8"),
    ]
    answers = steps(read(END_TO_END, rows))
    assert all(value and 1e3 < value < 1e5 for value, _ in answers[:3])
    for value, reason in answers[3:]:
        assert value is not None or reason
    assert "Another" in answers[5][1]
    assert "w4a8" in answers[6][1]


@pytest.mark.parametrize(("name", "shapes", "us"), KERNELS)
def test_a_time_in_ms_is_refused_or_beyond_what_shapes_tell(
    name: str, shapes: str, us: float
) -> None:
    row = ["DSv3 EP8", name, 1, us / 1000, 1, 0.1, shapes, "A3_752T", "here"]
    with pytest.raises(InputError, match="mean_us"):
        read(IN_NETWORK, [row])


def test_a_long_kernel_in_ms_is_told_by_its_macs() -> None:
    row = ["Qwen", "MatMulV2", 1, 4.2446, 1, 0.1, "41040,5120;3200,5120", "A3_752T", "here"]
    with pytest.raises(InputError, match="mean_us.*MACs"):
        read(IN_NETWORK, [row])


@quick
@given(st.data())
def test_a_mutated_table_is_read_or_its_fault_is_named(data: st.DataObject) -> None:
    lines = [
        ["DSv3 EP8", name, i + 1, us, 1, 0.1, shapes, "A3_752T", "here"]
        for i, (name, shapes, us) in enumerate(KERNELS[:4])
    ]
    text = io.StringIO()
    csv.writer(text).writerows([IN_NETWORK.split(","), *lines])
    broken = bytearray(text.getvalue().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        new = data.draw(st.binary(max_size=3))
        broken[at : at + data.draw(st.integers(0, 40))] = new
        if not broken:
            break
    try:
        rows = read_bytes(bytes(broken))
    except InputError:
        return
    check(rows)
