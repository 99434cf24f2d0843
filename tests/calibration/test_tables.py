"""Published tables read as they are: shapes into ops, and faults by file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.kernel import KernelRow, parse_specs, spec_text
from calibration.tables import load_rows
from calibration.tables.own import shipped_kernels
from hardware_models.errors import InputError
from hardware_models.ops import (
    BatchMatMul,
    GqaAttention,
    GroupedMatMul,
    GroupedMatMulSwigluQuant,
    HcclCollective,
    MatMul,
    MlaDecodeAttention,
    QuantMatMul,
    RowOp,
)

NETWORK = "scenario,kernel,count,mean_us,std_us,cv,input_shapes,hardware,source"
DSV3 = "DSv3-W8A8 decode in4096 out1536 TP8 DP2 EP16"
ALONE = (
    "hw,level,op,case_id,input_shape,dtype,attrs,baseline_perf_us,t_hw_us,roofline_fraction,"
    "baseline_is_placeholder_10x,note,source"
)
HCCL = "op,num_dies,message_bytes,bench_us,production_profiler_us,note,source"


def network(kernel: str, shapes: str, time: str = "10.5") -> str:
    return f'{DSV3},{kernel},10,{time},0.1,0.01,"{shapes}",ATLAS_800_A3_752T_128G_DIE,a table'


def alone(op: str, shape: str, types: str, attributes: str = "{}", time: str = "20.5") -> str:
    shape, types, attributes = (x.replace('"', '""') for x in (shape, types, attributes))
    fields = f'910b2,level2,{op},1,"{shape}","{types}","{attributes}",{time},1.0,0.1,N'
    return f"{fields},S | baseline_kernels: X×1,a table"


def rows_of(tmp_path: Path, header: str, *lines: str) -> list[KernelRow]:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([header, *lines]) + "\n", "utf-8")
    rows = load_rows(str(path))
    assert all(isinstance(row, KernelRow) for row in rows)
    return [row for row in rows if isinstance(row, KernelRow)]


@pytest.mark.parametrize(
    ("kernel", "shapes", "spec"),
    [
        (
            "QuantBatchMatmulV3(WeightNz)",
            "8,7168;144,448,16,32;4608;8",
            QuantMatMul(8, 7168, 4608, "w", "vector"),
        ),
        (
            "QuantBatchMatmulV3(WeightNz)",
            "5,1536;96,96,16,32;3072;3072",
            QuantMatMul(5, 1536, 3072, "w", "static"),
        ),
        ("MatMulV2", "16,5120;9496,5120", MatMul(16, 5120, 9496, "bf16", "w", "nd")),
        ("MatMulV3(WeightNz)", "16,5120;320,48,16,16", MatMul(16, 5120, 768, "bf16", "w")),
        ("TransposeBatchMatMul", "16,5,512;16,512,128", BatchMatMul(16, 5, 512, 128, "bf16", "w")),
        (
            "GroupedMatmul",
            "64,2048;8,128,224,16,32",
            GroupedMatMul(64.0, 2048, 7168, 8.0, "int8", "w"),
        ),
        (
            "GroupedMatmulSwigluQuant",
            "64,7168;8,128,448,16,32;8,4096;64;8",
            GroupedMatMulSwigluQuant(64.0, 7168, 4096, 8.0, "w"),
        ),
        ("AddRmsNormQuant", "16,5120;16,5120;5120;", RowOp("add_rms_norm_quant", 16, 5120)),
        ("AddRmsNormBias", "16,5120;16,5120;5120;", RowOp("add_rms_norm", 16, 5120)),
        ("DynamicQuant", "8,2304", RowOp("dynamic_quant", 8, 2304)),
        (
            "FusedInferAttentionScore(MLA)",
            "5,16,1,512;892,1,128,512;892,1,128,512;;;;5",
            MlaDecodeAttention(5, 1, 16, 4864, 512, 64, "bf16"),
        ),
        (
            "FusedInferAttentionScore(GQA paged)",
            "16,4,128;12308,128,128;12308,128,128;;2048,2048;16;16;...",
            GqaAttention(16, 1, 4, 1, 4864, 128, False, "bf16"),
        ),
    ],
)
def test_kernel_names_and_shapes_become_ops(
    tmp_path: Path, kernel: str, shapes: str, spec: object
) -> None:
    (row,) = rows_of(tmp_path, NETWORK, network(kernel, shapes))
    assert row.specs == (spec,)
    assert (row.place, row.hardware) == ("in_network", "a3-752t")


def test_alone_ops_become_specs(tmp_path: Path) -> None:
    quant, grouped, norm = rows_of(
        tmp_path,
        ALONE,
        alone(
            "quant_matmul",
            "[[1024, 4096], [4096, 14336], [14336], null, [1024]]",
            '["int8", "int8", "float32", null, "float32"]',
            '{"output_dtype": "float16"}',
        ),
        alone(
            "grouped_matmul",
            "[[100, 1024], [4, 2048, 1024]]",
            '["float16", "float16"]',
            '{"group_list": [40, 40, 100], "transpose_weight": true}',
        ),
        alone("rms_norm", "[[2, 511, 8192], [8192]]", '["float32", "float32"]'),
    )
    assert quant.specs == (QuantMatMul(1024, 4096, 14336, "w", "vector"),)
    # The second expert got no rows: its weight is not read.
    assert grouped.specs == (GroupedMatMul(100.0, 1024, 2048, 2.0, "bf16", "w", (40, 60)),)
    assert norm.specs == (RowOp("rms_norm", 1022, 8192, 4),)


def test_what_no_model_covers_keeps_its_reason(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, NETWORK, network("NeverHeardOf", "1,2"), network("Cast", "16"))
    assert [bool(row.specs) for row in rows] == [False, True]
    assert "NeverHeardOf" in rows[0].reason


def test_a_collective_prefers_the_time_in_the_network(tmp_path: Path) -> None:
    both, bench = rows_of(
        tmp_path, HCCL, "allGather,8,1024,5.4,6.4,n,s", "allGather,8,476160,30.4,,n,s"
    )
    assert (both.measured_us, both.place) == (6.4, "in_network")
    assert (bench.measured_us, bench.place) == (30.4, "isolated")
    assert both.specs == (HcclCollective("all_gather", 8, 1024.0),)
    with pytest.raises(InputError, match=r"csv:2: bench_us"):
        rows_of(tmp_path, HCCL, "allGather,8,1024,-5.4,6.4,n,s")


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (network("Cast", "16", "-3"), "mean_us"),
        (network("Cast", "16", "0.0105"), "mean_us"),
        (network("Cast", "16", "soon"), "mean_us"),
        (network("Cast", "16,x"), "input_shapes"),
        (network("Cast", "16").replace("752T", "999T"), "hardware"),
        (network("", "16"), "kernel"),
    ],
    ids=["negative", "ms as us", "no number", "shape", "die", "empty"],
)
def test_a_wrong_field_is_named_by_file_line_and_column(
    tmp_path: Path, line: str, column: str
) -> None:
    with pytest.raises(InputError) as caught:
        rows_of(tmp_path, NETWORK, network("Cast", "16"), line)
    assert caught.value.field == column
    assert str(caught.value).startswith(f"{tmp_path / 'table.csv'}:3: {column}")


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"", ":1"),
        (NETWORK.encode() + b"\n", ":2"),
        (NETWORK.replace("mean_us", "time").encode() + b"\n" + network("C", "1").encode(), ":1"),
        ("\n".join([NETWORK, network("Cast", "1"), network("Cast", "1")]).encode(), ":3"),
        ("\n".join([NETWORK, network("Cast", "1")]).encode("utf-16"), ":1"),
        (NETWORK.encode() + b"\n" + network("Cast", "1").encode() + b"\xff", ":2"),
        ((NETWORK + "\n" + network("Cast", "1") + ",more").encode(), ":2"),
        (b"a,b\n1,2\n", ":1"),
    ],
    ids=[
        "empty file",
        "no rows",
        "missing column",
        "duplicate",
        "utf-16",
        "latin-1",
        "fields",
        "unknown table",
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, data: bytes, where: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_rows(str(path))
    assert str(caught.value).startswith(f"{path}{where}")


def test_specs_survive_the_way_through_text() -> None:
    rows = shipped_kernels()
    for row in rows:
        assert parse_specs(spec_text(row.specs), "spec", "here") == row.specs
    assert len(rows) > 300
    assert {row.place for row in rows} == {"isolated", "in_network"}


@pytest.mark.parametrize(
    "text",
    ["matmul m=1", "matmul m=0 k=1 n=1 dtype=bf16", "no_op m=1", "sample rows=1 width=2 x=3"],
)
def test_a_wrong_spec_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="spec"):
        parse_specs(text, "spec", "own.csv:2")
