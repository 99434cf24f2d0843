"""Demand of the ops that only prefill has: attention, routing, what the host does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.demand import Cores
from hardware_models.hardware import load_hardware
from hardware_models.ops import GqaAttention, HostLaunch, HostRead, InitRouting, RowOp
from hardware_models.ops.alone import alone_us
from hardware_models.ops.attention import kv_seen

HARDWARE = load_hardware("a3-752t")
FULL = Cores(24, 48)


def attention(
    rows: int, *, causal: bool = True, heads: int = 64, kv_heads: int = 64
) -> GqaAttention:
    return GqaAttention(1, rows, heads, kv_heads, rows, 192, causal, "bf16", 128)


def test_widths_of_scores_and_values_add_up() -> None:
    demand = attention(8192, causal=False).demand(HARDWARE, FULL)
    macs = 64 * 8192 * 8192 * (192 + 128)
    peak = 24 * 4096 * HARDWARE["clock_ghz"] * 1e3 * HARDWARE["gqa_cube_efficiency"]
    assert demand.cube_us == pytest.approx(macs / peak)
    assert demand.hbm_bytes == 64 * 8192 * (192 + 128) * 2
    same = GqaAttention(1, 512, 8, 8, 512, 128, True, "bf16")
    spelled = GqaAttention(1, 512, 8, 8, 512, 128, True, "bf16", 128)
    assert same.demand(HARDWARE, FULL) == spelled.demand(HARDWARE, FULL)


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_a_row_meets_whole_blocks_up_to_its_own_token(rows: int, before: int) -> None:
    tokens = before + rows
    met = [min(tokens, math.ceil((before + row + 1) / 512) * 512) for row in range(rows)]
    expected = tokens if rows == 1 else sum(met) / rows
    assert kv_seen(rows, tokens, causal=True) == pytest.approx(expected)


@given(st.integers(2, 64))
def test_a_causal_mask_halves_the_work_but_for_cut_blocks(blocks: int) -> None:
    rows = 512 * blocks
    whole, half = (attention(rows, causal=c).demand(HARDWARE, FULL) for c in (False, True))
    # Blocks on the diagonal count whole: (n + 1) / 2n of all of them.
    assert half.cube_us / whole.cube_us == pytest.approx((blocks + 1) / (2 * blocks))
    assert half.cube_us > whole.cube_us / 2


def test_shared_keys_and_values_are_read_once_for_their_heads() -> None:
    many, few = attention(4096), attention(4096, kv_heads=8)
    assert few.demand(HARDWARE, FULL).hbm_bytes == many.demand(HARDWARE, FULL).hbm_bytes / 8
    ratio = few.demand(HARDWARE, FULL).cube_us / many.demand(HARDWARE, FULL).cube_us
    # Rows of shared heads stand below each other, so the mask cuts other blocks.
    assert ratio == pytest.approx(1, rel=0.15)


@given(st.integers(1, 5000), st.integers(1, 12), st.sampled_from([1024, 6144]))
def test_init_routing_costs_at_least_the_moving_of_its_copies(
    rows: int, topk: int, hidden: int
) -> None:
    plain, quantised = (
        InitRouting(rows, topk, rows * topk, hidden, int8).demand(
            HARDWARE, Cores(0, min(rows * topk, 48))
        )
        for int8 in (False, True)
    )
    moved = rows * topk * hidden * 4 / (HARDWARE["re_routing_gbps"] * 1e3)
    assert plain.vector_us >= moved
    waves = math.ceil(rows * topk / 48)
    extra = waves * HARDWARE["dynamic_quant_us_per_kelement"] * hidden / 1024
    assert quantised.vector_us >= extra
    more = InitRouting(rows + 48, topk, (rows + 48) * topk, hidden, True)
    assert alone_us(more, HARDWARE) > alone_us(
        InitRouting(rows, topk, rows * topk, hidden, True), HARDWARE
    )


def test_zero_experts_are_sorted_but_not_copied() -> None:
    real, all_copied = (InitRouting(4096, 12, 4096 * k, 6144, True) for k in (8, 12))
    assert alone_us(real, HARDWARE) < alone_us(all_copied, HARDWARE)
    assert alone_us(real, HARDWARE) > alone_us(RowOp("re_routing", 4096 * 8, 6144, 1), HARDWARE)


def test_the_host_takes_no_cores_of_the_die() -> None:
    for spec, name in ((HostLaunch(), "launch_host_eager_us"), (HostRead(), "host_read_us")):
        assert spec.cores(HARDWARE) == Cores(0, 0)
        assert alone_us(spec, HARDWARE) == HARDWARE[name]
