"""Evaluation: steady periods, units, ledgers and intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_models.hardware import load_hardware
from twin.engine.options import EngineOptions
from twin.evaluate import Spread, evaluate, with_interval
from twin.graph.shapes import step_shapes
from twin.memory import dispatch_buffer_mib, memory_ledger
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.uncertainty import draw_hardware, tpot_spread
from twin.weights import role_weights

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
GIB = 1024**3
SHIPPED = ["recipe_colocated", "recipe_colocated_c12v24", "recipe_afd"]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_steady_period_gives_the_full_step(name: str) -> None:
    schedule = load_schedule(name)
    short = evaluate(schedule, MODEL, HARDWARE, full=False)
    whole = evaluate(schedule, MODEL, HARDWARE, full=True)
    assert short.step_us == pytest.approx(whole.step_us, rel=1e-9)
    assert short.time_by_kind == pytest.approx(whole.time_by_kind, rel=1e-9)
    assert short.timeline is None
    assert whole.timeline is not None


def test_tpot_is_per_accepted_token_and_throughput_per_die_of_all_roles() -> None:
    schedule = load_schedule("recipe_afd")
    result = evaluate(schedule, MODEL, HARDWARE)
    assert result.tpot_us == pytest.approx(result.step_us / 2.15)
    batch, dies = schedule.workload.global_batch, 128
    assert result.tokens_per_s_per_die == pytest.approx(batch / result.tpot_us * 1e6 / dies)
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


def test_intervals_hold_the_value_and_repeat() -> None:
    schedule = load_schedule("recipe_colocated")
    spread = tpot_spread(schedule, MODEL, draw_hardware(HARDWARE, 8, seed=1))
    assert spread.low_us < spread.median_us < spread.high_us
    assert spread == tpot_spread(schedule, MODEL, draw_hardware(HARDWARE, 8, seed=1))
    plain = evaluate(schedule, MODEL, HARDWARE, full=False)
    above = Spread(plain.tpot_us + 1, plain.tpot_us + 2, plain.tpot_us + 3)
    for given in (spread, above, Spread(1.0, 2.0, 3.0)):
        held = with_interval(plain, given)
        assert held.interval_us is not None
        assert held.interval_us[0] <= plain.tpot_us <= held.interval_us[1]
        assert held.interval_us[0] <= given.low_us
        assert held.interval_us[1] >= given.high_us
        assert held.median_us == given.median_us


def test_draws_stay_inside_the_ranges() -> None:
    for variant in draw_hardware(HARDWARE, 5, seed=3):
        for parameter in variant:
            known = HARDWARE.parameters[parameter.name]
            assert known.low <= parameter.value <= known.high
