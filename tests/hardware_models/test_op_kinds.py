"""Every op kind has a model: FLOPs and bytes against hand counts, and laws between the kinds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models import ops
from hardware_models.demand import Cores, OpSpec
from hardware_models.hardware import Hardware, load_hardware
from hardware_models.ops import (
    Embedding,
    GatingTopK,
    GqaAttention,
    GroupedMatMul,
    GroupedMatMulSwigluQuant,
    MatMul,
    MlaDecodeAttention,
    RowOp,
    Sample,
)
from hardware_models.ops.alone import alone_us
from hardware_models.ops.attention import busy_cores
from hardware_models.ops.tiling import SPLIT_K_MIN, DType, plan_cube
from hardware_models.ops.vector import RowKind

DIES = {name: load_hardware(name) for name in ("910b2", "a3-560t", "a3-752t")}
A3 = DIES["a3-752t"]
FULL = Cores(24, 48)

die = st.sampled_from(tuple(DIES.values()))
rows = st.integers(1, 4096)
width = st.integers(1, 1024).map(lambda n: 16 * n)


def test_every_model_stands_in_the_table_of_kinds() -> None:
    assert ops.__doc__
    for name in ops.__all__:
        assert name in ops.__doc__
    for kind in get_args(RowKind):
        assert kind in ops.__doc__


# --- products


@given(die=die, m=rows, k=width, n=width, dtype=st.sampled_from(("bf16", "fp32")))
def test_row_by_row_weights_are_never_faster(
    die: Hardware, m: int, k: int, n: int, dtype: DType
) -> None:
    blocks = MatMul(m, k, n, dtype, "w")
    rowwise = replace(blocks, layout="nd")
    assert alone_us(rowwise, die) >= alone_us(blocks, die)
    plain = die.with_values({"matmul_nd_factor": 1.0})
    assert alone_us(rowwise, plain) == alone_us(blocks, plain)
    assert rowwise.demand(die, FULL).weights == blocks.demand(die, FULL).weights


def test_the_factor_is_that_of_the_published_tiling_case() -> None:
    """fp16, 20 rows, K 16384, N 6144 on 20 cores: 181.4 us in NZ, 238.8 us row by row."""
    blocks = MatMul(20, 16384, 6144, "bf16", "w")
    cores = Cores(20, 0)
    rowwise = alone_us(replace(blocks, layout="nd"), DIES["910b2"], cores)
    assert rowwise / alone_us(blocks, DIES["910b2"], cores) == pytest.approx(238.8 / 181.4, rel=0.1)


def test_a_shard_of_the_output_head_reads_its_columns_once() -> None:
    demand = MatMul(96, 6144, 131072 // 8, "bf16", "lm_head").demand(A3, FULL)
    assert demand.weights[0].bytes == 6144 * 16384 * 2
    assert demand.hbm_bytes == 96 * 6144 * 2 + 96 * 16384 * 2


@given(m=st.integers(1, 128), k=st.integers(16, 16384), n=st.integers(1, 128))
def test_the_k_of_a_single_tile_is_split_over_idle_cores(m: int, k: int, n: int) -> None:
    one, many = (plan_cube(A3, (m,), k, n, "bf16", cores, 0.9, l2_feeds=False) for cores in (1, 24))
    parts = max(1, min(24, k // SPLIT_K_MIN))
    assert many.cube_us == pytest.approx(one.cube_us / parts)
    assert many.effective_cores == parts


def test_tiles_that_fill_the_cores_keep_their_k_whole() -> None:
    assert plan_cube(A3, (128,), 8192, 256 * 24, "bf16", 24, 1.0, l2_feeds=False).cube_us == (
        pytest.approx(128 * 256 * 8192 / (4096 * A3["clock_ghz"] * 1e3))
    )


# --- grouped product with SwiGLU and quantisation


FUSED = GroupedMatMulSwigluQuant(128.0, 7168, 4096, 8.0, "w13")


def test_the_fused_product_moves_what_a_hand_count_says() -> None:
    demand = FUSED.demand(A3, FULL)
    assert demand.weights[0].bytes == 8 * 7168 * 4096
    # int8 rows in; half the columns out in int8, an fp32 scale a row.
    assert demand.hbm_bytes == 128 * (7168 + 2048 + 4)
    ideal = A3.with_values({"grouped_matmul_efficiency": 1.0})
    macs = 8 * 16 * 7168 * 4096
    assert FUSED.demand(ideal, FULL).cube_us == pytest.approx(
        macs / (8192 * A3["clock_ghz"] * 1e3 * 24), rel=0.1
    )


@given(die=die, count=rows, k=width, n=width, experts=st.integers(1, 16))
def test_one_launch_is_faster_than_two(
    die: Hardware, count: int, k: int, n: int, experts: int
) -> None:
    active = float(min(experts, count))
    fused = GroupedMatMulSwigluQuant(float(count), k, n, active, "w")
    apart = (
        GroupedMatMul(float(count), k, n, active, "int8", "w"),
        RowOp("dequant_swiglu_quant", count, n),
    )
    assert alone_us(fused, die) < sum(alone_us(spec, die) for spec in apart)


@given(die=die, count=st.integers(1, 2048), more=st.integers(1, 2048))
def test_more_rows_of_the_fused_product_are_never_faster(
    die: Hardware, count: int, more: int
) -> None:
    few, many = (GroupedMatMulSwigluQuant(float(n), 7168, 4096, 1.0, "w") for n in
                 (count, count + more))  # fmt: skip
    assert alone_us(few, die) <= alone_us(many, die)


def test_a_row_that_nothing_was_fitted_to() -> None:
    """834.8 us for 2048 rows, 8 experts, K 10240, N 8192 (triton-ascend, die not named)."""
    spec = GroupedMatMulSwigluQuant(2048.0, 10240, 8192, 8.0, "w")
    assert alone_us(spec, DIES["910b2"]) == pytest.approx(834.8, rel=0.15)


# --- attention over few heads


def test_the_kv_of_few_tiles_is_split_over_idle_cores() -> None:
    assert busy_cores(1, 24 * 512, 24) == 24
    assert busy_cores(1, 1024, 24) == 2
    assert busy_cores(3, 100, 24) == 3
    assert busy_cores(100, 100, 24) == 24


@pytest.mark.parametrize("tokens", [512, 2048, 24 * 512, 1 << 17])
def test_one_sequence_uses_as_many_cores_as_it_has_blocks(tokens: int) -> None:
    """One MLA sequence of 128 query rows: macs of the scores and values over those cores."""
    spec = MlaDecodeAttention(1, 1, 128, tokens, 512, 64, "bf16")
    ideal = A3.with_values({"attention_cube_efficiency": 1.0})
    macs = 128 * tokens * (512 + 64 + 512)
    cores = min(24, tokens // 512)
    expected = macs / (4096 * A3["clock_ghz"] * 1e3 * cores)
    assert spec.demand(ideal, FULL).cube_us == pytest.approx(expected)


@given(
    die=die,
    sequences=st.integers(1, 64),
    tokens=st.integers(1, 1 << 17),
    more=st.integers(1, 4096),
    heads=st.sampled_from((1, 8, 16, 64)),
)
def test_a_longer_kv_is_never_faster(
    die: Hardware, sequences: int, tokens: int, more: int, heads: int
) -> None:
    for short in (
        MlaDecodeAttention(sequences, 1, heads, tokens, 512, 64, "bf16"),
        GqaAttention(sequences, 1, heads, 1, tokens, 128, False, "bf16"),
    ):
        assert alone_us(short, die) <= alone_us(replace(short, kv_tokens=tokens + more), die) * (
            1 + 1e-9
        )
        assert alone_us(short, die) <= alone_us(replace(short, sequences=sequences + 1), die) * (
            1 + 1e-9
        )


# --- row by row


# Bytes that a row of 1024 bf16 elements moves: what is read, then what is written.
MOVED: dict[RowKind, int] = {
    "rms_norm": 2048 + 2048,
    "add_rms_norm": 2 * 2048 + 2 * 2048,
    "add_rms_norm_quant": 2 * 2048 + 2048 + 1024,
    "dynamic_quant": 2048 + 1024,
    "static_quant": 2048 + 1024,
    "swiglu": 2048 + 1024,
    "dequant_swiglu_quant": 2048 + 512,
    "softmax": 2048 + 2048,
    "kv_norm_rope": 2048 + 2048,
    "rope": 2048 + 2048,
    "activation": 2048 + 2048,
    "cast": 2048 + 2048,
    "add": 2 * 2048 + 2048,
    "move": 2048 + 2048,
    "select": 2 * 2048 + 2048,
    "gather": 2048 + 2048,
    "transpose": 2048 + 2048,
    "re_routing": 2048 + 2048,
    "finalize_routing": 2048 + 2048,
    "sort": 2 * 2048 + 2 * 2048,
    "exp": 2048 + 2048,
    "weight_relayout": 2048 + 2048,
}


@pytest.mark.parametrize("kind", get_args(RowKind))
@pytest.mark.parametrize("name", DIES)
def test_a_row_op_without_compute_runs_at_the_rate_of_its_bytes(name: str, kind: RowKind) -> None:
    idle = {f"{kind}_row_us": 0.0, f"{kind}_us_per_kelement": 0.0}
    die = DIES[name].with_values(idle)
    expected = 4800 * MOVED[kind] / (die[f"{kind}_gbps"] * 1e3)
    spec = RowOp(kind, 4800, 1024)
    assert spec.demand(die, spec.cores(die)).vector_us == pytest.approx(expected)


ROW_SPECS: list[OpSpec] = [
    *(RowOp(kind, 96, 2048) for kind in get_args(RowKind)),
    Embedding(96, 6144),
    GatingTopK(96, 768),
    Sample(96, 131072),
]


@pytest.mark.parametrize("spec", ROW_SPECS, ids=lambda spec: getattr(spec, "op", spec.kind))
@given(die=die, count=rows, more=rows, columns=width, wider=width)
def test_more_or_longer_rows_are_never_faster(
    spec: OpSpec, die: Hardware, count: int, more: int, columns: int, wider: int
) -> None:
    small = replace(spec, rows=count, width=columns)  # type: ignore[call-arg]
    for change in ({"rows": count + more}, {"width": columns + wider}):
        assert alone_us(small, die) <= alone_us(replace(small, **change), die) + 1e-9


def test_an_embedding_reads_its_rows_and_deals_them_in_waves() -> None:
    one, two = (Embedding(count, 6144).demand(A3, Cores(0, 48)) for count in (48, 49))
    assert one.hbm_bytes == 48 * 6144 * 2
    assert two.vector_us == pytest.approx(2 * one.vector_us)


def test_sampling_reads_every_logit() -> None:
    demand = Sample(12, 131072).demand(A3, Cores(0, 48))
    assert demand.vector_us == pytest.approx(12 * 131072 / 1e6 * A3["argmax_us_per_melement"])
    assert math.isclose(Sample(12, 131072).demand(A3, Cores(0, 24)).vector_us, 2 * demand.vector_us)
