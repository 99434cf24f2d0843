"""Evaluation: steady periods, units, ledgers and intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hardware_models.hardware import load_hardware
from twin.engine.options import EngineOptions
from twin.evaluate import Spread, evaluate, interval_around, latencies, with_interval
from twin.graph.shapes import step_shapes
from twin.memory import dispatch_buffer_mib, memory_ledger
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.feasible import rejection
from twin.uncertainty import draw_hardware, latency_spread
from twin.weights import role_weights

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
GIB = 1024**3
MIB = 1024**2
SHIPPED = ["recipe_colocated", "recipe_colocated_c12v24", "recipe_afd", "recipe_long_context"]


@pytest.mark.parametrize("name", SHIPPED)
def test_latencies_are_those_of_full_steps(name: str) -> None:
    schedule = load_schedule(name)
    variants = [HARDWARE, *draw_hardware(HARDWARE, 3, seed=2)]
    for us, variant in zip(latencies(schedule, MODEL, variants), variants, strict=True):
        assert us == pytest.approx(evaluate(schedule, MODEL, variant).latency_us, rel=1e-9)


def test_tpot_is_per_accepted_token_and_throughput_per_die_of_all_roles() -> None:
    schedule = load_schedule("recipe_afd")
    result = evaluate(schedule, MODEL, HARDWARE)
    assert result.latency_us == pytest.approx(result.step_us / 2.15)
    batch, dies = schedule.workload.global_batch, 128
    assert result.tokens_per_s_per_die == pytest.approx(batch / result.latency_us * 1e6 / dies)
    assert result.tokens_per_s_per_chip == pytest.approx(2 * result.tokens_per_s_per_die)


def test_main_stream_time_adds_up_to_the_step() -> None:
    result = evaluate(load_schedule("recipe_colocated"), MODEL, HARDWARE)
    assert sum(result.time_by_kind.values()) == pytest.approx(result.step_us, rel=1e-9)


def test_contention_never_helps_the_recipe() -> None:
    schedule = load_schedule("recipe_colocated")
    alone = evaluate(schedule, MODEL, HARDWARE, options=EngineOptions(contention=False))
    assert alone.step_us <= evaluate(schedule, MODEL, HARDWARE).step_us


def _with_ep(schedule: Schedule, dies: int) -> Schedule:
    roles = {"colocated": replace(schedule.deployment.attention, dies=dies, ep=dies)}
    workload = replace(schedule.workload, global_batch=4 * dies)
    return replace(
        schedule, workload=workload, deployment=replace(schedule.deployment, roles=roles)
    )


@pytest.mark.parametrize(("dies", "layers_gib"), [(128, 10.8), (64, 14.7), (32, 22.6)])
def test_weights_of_the_layers_match_the_published_arithmetic(dies: int, layers_gib: float) -> None:
    schedule = _with_ep(load_schedule("recipe_colocated"), dies)
    items = role_weights(MODEL, schedule.deployment, "colocated", 2)
    in_layers = sum(item.total_bytes for item in items if item.count % MODEL.num_layers == 0)
    assert in_layers / GIB == pytest.approx(layers_gib, rel=0.01)
    # Embedding, head and MTP lie beside them: two embeddings of 1.5 GiB dominate.
    ledger = memory_ledger(schedule, MODEL, HARDWARE)["colocated"]
    assert ledger.weights_bytes - in_layers > 3 * GIB


def test_ep8_does_not_fit_and_says_by_how_much() -> None:
    schedule = _with_ep(load_schedule("recipe_colocated"), 8)
    role = replace(schedule.deployment.attention, lm_head_tp=8)
    deployment = replace(schedule.deployment, roles={"colocated": role})
    ledger = memory_ledger(replace(schedule, deployment=deployment), MODEL, HARDWARE)["colocated"]
    assert ledger.excess_bytes > 0


def test_kv_and_dispatch_buffer_match_the_published_figures() -> None:
    schedule = load_schedule("recipe_colocated")
    ledger = memory_ledger(schedule, MODEL, HARDWARE)["colocated"]
    assert ledger.kv_bytes / GIB == pytest.approx(1.15, abs=0.1)
    assert dispatch_buffer_mib(step_shapes(schedule, MODEL), HARDWARE) == 200


def test_dies_of_a_kvp_group_hold_a_part_of_each_sequence() -> None:
    """Batch 4 on 4 groups: 131072 tokens of 1152 B in each of 56 attentions, an eighth a die."""
    long = load_schedule("recipe_long_context")
    ledger = memory_ledger(long, MODEL, HARDWARE)["colocated"]
    assert ledger.kv_bytes == 131072 * 1152 * 56 // 8
    alone = _with_sizes(long, kvp=1, o_proj_tp=1)
    more = replace(alone, workload=replace(alone.workload, global_batch=32))
    assert memory_ledger(more, MODEL, HARDWARE)["colocated"].kv_bytes == 8 * ledger.kv_bytes


def test_dies_of_a_tp_group_each_hold_every_latent_of_the_group() -> None:
    schedule = load_schedule("recipe_colocated")
    ledger = memory_ledger(schedule, MODEL, HARDWARE)["colocated"]
    split = memory_ledger(_with_sizes(schedule, attention_tp=8), MODEL, HARDWARE)["colocated"]
    assert split.kv_bytes == 8 * ledger.kv_bytes
    # q_b, uk and uv lie split over the heads' dies: 52 MiB of each attention, MTP's included.
    saved = ledger.weights_bytes - split.weights_bytes
    assert saved == 52 * MIB * 57 * 7 // 8


@pytest.mark.parametrize("kvp", [1, 8])
def test_a_long_batch_overflows_memory_by_a_stated_amount(kvp: int) -> None:
    """64 sequences of 131072 tokens: 2 a die alone, or 16 eighths: 15.8 GiB of latents."""
    long = _with_sizes(load_schedule("recipe_long_context"), kvp=kvp, o_proj_tp=kvp, dense_tp=kvp)
    fits = replace(long, workload=replace(long.workload, global_batch=64))
    assert rejection(fits, MODEL, HARDWARE) is None
    over = replace(long, workload=replace(long.workload, global_batch=256))
    reason = rejection(over, MODEL, HARDWARE)
    assert reason is not None
    assert reason.reason == "memory of a colocated die"
    assert "GiB too much" in reason.detail


def _with_sizes(schedule: Schedule, **sizes: int) -> Schedule:
    roles = {"colocated": replace(schedule.deployment.attention, **sizes)}
    return replace(schedule, deployment=replace(schedule.deployment, roles=roles), prefetch=())


def test_intervals_hold_the_value_and_repeat() -> None:
    schedule = load_schedule("recipe_colocated")
    spread = latency_spread(schedule, MODEL, draw_hardware(HARDWARE, 8, seed=1))
    assert spread.low_us < spread.median_us < spread.high_us
    assert spread == latency_spread(schedule, MODEL, draw_hardware(HARDWARE, 8, seed=1))
    plain = evaluate(schedule, MODEL, HARDWARE)
    above = Spread(plain.latency_us + 1, plain.latency_us + 2, plain.latency_us + 3)
    for given in (spread, above, Spread(1.0, 2.0, 3.0)):
        held = with_interval(plain, given, HARDWARE)
        assert held.interval_us is not None
        assert held.interval_us[0] < plain.latency_us < held.interval_us[1]
        assert held.interval_us[0] <= given.low_us
        assert held.interval_us[1] >= given.high_us
        assert held.median_us == given.median_us


def test_ends_add_spread_and_what_the_fit_left_over_in_quadrature() -> None:
    low, high = interval_around(100.0, 100 * math.exp(-0.3), 100 * math.exp(0.6), 0.4)
    assert (low, high) == pytest.approx((100 * math.exp(-0.5), 100 * math.exp(0.52**0.5)))
    # A spread that lies on one side of the prediction says nothing about the other.
    low, high = interval_around(100.0, 110.0, 120.0, 0.05)
    assert low == pytest.approx(100 * math.exp(-0.05))
    low, high = interval_around(100.0, 80.0, 90.0, 0.05)
    assert high == pytest.approx(100 * math.exp(0.05))


def test_draws_stay_inside_the_ranges() -> None:
    for variant in draw_hardware(HARDWARE, 5, seed=3):
        for parameter in variant:
            known = HARDWARE.parameters[parameter.name]
            assert known.low <= parameter.value <= known.high
