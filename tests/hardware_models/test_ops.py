"""Op demands: bytes against hand counts, and laws that hold for every shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.demand import Cores, OpSpec
from hardware_models.hardware import load_hardware
from hardware_models.ops import (
    AttentionUpdate,
    BatchMatMul,
    Collective,
    Dispatch,
    GatingTopK,
    GroupedMatMul,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    PrefetchWeight,
    QuantMatMul,
    RowOp,
    Sample,
    Send,
)
from hardware_models.ops.alone import alone_us
from hardware_models.ops.tiling import plan_cube

HARDWARE = load_hardware("a3-752t")
FULL = Cores(24, 48)
MIB = 1024**2

PROLOG = MlaProlog(12, 6144, 1536, 512, 64, 128, 64, "bf16", ("q_a", "q_b", "kv_a", "uk"))
SPECS: list[OpSpec] = [
    MatMul(96, 1024, 6144, "bf16", "o_proj"),
    QuantMatMul(96, 6144, 3072, "gate_up"),
    BatchMatMul(64, 12, 512, 128, "bf16", "uv"),
    GroupedMatMul(96.0, 6144, 4096, 4.0, "int8", "w13"),
    MlaDecodeAttention(4, 3, 64, 4608, 512, 64, "bf16"),
    PROLOG,
    RowOp("dequant_swiglu_quant", 96, 3072),
    GatingTopK(12, 768),
    Sample(12, 131072),
    Collective("all_gather", 8, 147456),
    Collective("all_reduce", 8, 147456),
    AttentionUpdate(8, 96, 128, "bf16"),
    Dispatch(96.0, 128, 6144),
]


def test_weight_bytes_of_the_published_layer_match_hand_counts() -> None:
    def total(spec: OpSpec) -> float:
        return sum(read.bytes for read in spec.demand(HARDWARE, FULL).weights)

    assert total(MatMul(96, 1024, 6144, "bf16", "w")) == 12 * MIB
    assert total(QuantMatMul(96, 6144, 3072, "w")) == 18 * MIB
    assert total(QuantMatMul(96, 1536, 6144, "w")) == 9 * MIB
    assert total(MatMul(12, 6144, 768, "fp32", "w")) == 18 * MIB
    assert total(GroupedMatMul(96.0, 6144, 4096, 1.0, "int8", "w")) == 24 * MIB
    assert total(BatchMatMul(64, 12, 512, 128, "bf16", "w")) == 8 * MIB
    reads = {read.weight: read.bytes / MIB for read in PROLOG.demand(HARDWARE, FULL).weights}
    assert reads == {"q_a": 18, "q_b": 36, "kv_a": 6.75, "uk": 8}


def test_attention_reads_every_latent_once() -> None:
    spec = MlaDecodeAttention(4, 3, 64, 4608, 512, 64, "bf16")
    assert spec.demand(HARDWARE, FULL).hbm_bytes == 4 * 4608 * 1152


def test_a_grouped_matmul_reads_only_active_experts() -> None:
    one, two = (
        GroupedMatMul(8.0, 6144, 4096, active, "int8", "w").demand(HARDWARE, FULL)
        for active in (1.0, 2.0)
    )
    assert two.weights[0].bytes == 2 * one.weights[0].bytes


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
@given(aic=st.integers(1, 24))
def test_fewer_cores_are_never_faster(spec: OpSpec, aic: int) -> None:
    wanted = spec.cores(HARDWARE)
    limited = Cores(min(wanted.aic, aic), min(wanted.aiv, 2 * aic))
    few, many = spec.demand(HARDWARE, limited), spec.demand(HARDWARE, wanted)
    for name in ("cube_us", "vector_us", "latency_us"):
        assert getattr(few, name) >= getattr(many, name) - 1e-12
    assert alone_us(spec, HARDWARE, limited) >= alone_us(spec, HARDWARE, wanted) - 1e-9
    assert few.hbm_cap_gbps <= many.hbm_cap_gbps + 1e-9
    assert few.weights == many.weights


@given(
    m=st.integers(1, 4096),
    k=st.integers(16, 8192),
    n=st.integers(16, 16384),
    cores=st.integers(1, 24),
)
def test_tiled_compute_is_never_below_the_cube_rate(m: int, k: int, n: int, cores: int) -> None:
    plan = plan_cube(HARDWARE, (m,), k, n, "bf16", cores, 0.9)
    rate = 4096 * 0.9 * HARDWARE["clock_ghz"] * 1e3
    assert plan.cube_us >= m * k * n / (rate * cores) * (1 - 1e-9)
    assert 0 < plan.effective_cores <= cores


def test_tile_quantisation_orders_the_published_tiling_case() -> None:
    """1024 x 576 x 6144 as 24 tiles on 20 cores took 1.5 times as long as in one wave of 20."""
    one_wave = plan_cube(HARDWARE, (1024,), 6144, 576, "bf16", 20, 0.9)
    whole_die = plan_cube(HARDWARE, (1024,), 6144, 576, "bf16", 8, 0.9)
    assert one_wave.effective_cores == 20
    assert whole_die.cube_us > 2 * one_wave.cube_us


def test_zero_core_ops_ask_for_no_cores() -> None:
    for spec in (PrefetchWeight("w", 1, 1), Send(10)):
        assert spec.cores(HARDWARE) == Cores(0, 0)


def test_a_larger_group_has_a_higher_collective_floor() -> None:
    small, large = (
        Collective("all_gather", group, 1024).demand(HARDWARE, FULL).latency_us for group in (8, 16)
    )
    assert large > small


@given(group=st.integers(2, 64), share=st.integers(1, 1 << 20))
def test_an_all_reduce_moves_what_its_two_halves_move(group: int, share: int) -> None:
    """Reduce-scatter to the parts, all-gather of the parts, behind one floor."""
    whole = Collective("all_reduce", group, share * group).demand(HARDWARE, FULL)
    halves = [
        Collective(op, group, share).demand(HARDWARE, FULL)
        for op in ("reduce_scatter", "all_gather")
    ]
    nothing = Collective("all_reduce", group, 0).demand(HARDWARE, FULL)
    assert whole.link_bytes == pytest.approx(2 * (group - 1) * share)
    assert whole.link_bytes == pytest.approx(sum(half.link_bytes for half in halves))
    both_us = sum(half.latency_us for half in halves)
    assert whole.latency_us == pytest.approx(both_us - nothing.latency_us)


@given(parts=st.integers(1, 15), rows=st.integers(1, 4096))
def test_merging_more_parts_takes_longer(parts: int, rows: int) -> None:
    few, more = (
        alone_us(AttentionUpdate(count, rows, 128, "bf16"), HARDWARE)
        for count in (parts, parts + 1)
    )
    assert few < more


def test_a_merge_of_long_rows_runs_at_the_rate_of_its_bytes() -> None:
    """Each part brings its rows in bf16 and an fp32 LSE a row; one result is written."""
    spec = AttentionUpdate(8, 48, 512, "bf16")
    fast = HARDWARE.with_values({"add_row_us": 0, "add_us_per_kelement": 0})
    moved = 48 * (8 * (512 * 2 + 4) + 512 * 2)
    expected = moved / (HARDWARE["add_gbps"] * 1e3)
    assert spec.demand(fast, Cores(0, 48)).vector_us == pytest.approx(expected)
