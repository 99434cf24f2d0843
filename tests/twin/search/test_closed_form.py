"""The closed-form A:F rule against a plain scan of its objective, and its times."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.evaluate import evaluate
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.baselines import closed_form_baseline
from twin.search.changes import with_ratio
from twin.search.closed_form import LayerTimes, LinearTime, closed_form, layer_times
from twin.search.feasible import rejection

positive = st.floats(0.01, 1000)


@given(st.floats(1, 256), positive, positive, positive, positive, positive)
def test_no_ratio_beats_the_rule(
    batch: float, attention: float, a_c: float, b_c: float, a_f: float, b_f: float
) -> None:
    times = LayerTimes(
        batch=batch,
        attention_us=attention,
        transfer=LinearTime(a_c / batch, b_c),
        ffn=LinearTime(a_f / batch, b_f),
    )
    found = closed_form(times, range(1, 33))
    best = times.throughput(found.ratio)
    for ratio in np.geomspace(1e-6, 1e6, 2000):
        assert times.throughput(float(ratio)) <= best * (1 + 1e-9)
    assert times.throughput(found.chosen) == max(map(times.throughput, range(1, 33)))


def case(attention: float, ffn: LinearTime, transfer: LinearTime | None = None) -> LayerTimes:
    return LayerTimes(
        batch=4, attention_us=attention, transfer=transfer or LinearTime(0.0, 0.1), ffn=ffn
    )


@pytest.mark.parametrize(
    ("times", "ratio", "why"),
    [
        # t_F = 10 r + 20 meets 100 at 8; its own peak, sqrt(20 / 10), is lower.
        (case(100, LinearTime(2.5, 20)), 8.0, "the FFN catches up"),
        # t_F = 10 r + 360 never meets 100: the peak is sqrt(360 / 10).
        (case(100, LinearTime(2.5, 360)), 6.0, "the FFN binds"),
        # t_C = 20 r + 20 meets 100 at 4, before the FFN does.
        (case(100, LinearTime(2.5, 20), LinearTime(5, 20)), 4.0, "the transfers catch up"),
        # t_C = 1000 r + 4000 binds everywhere: its peak.
        (case(100, LinearTime(2.5, 20), LinearTime(250, 4000)), 2.0, "the transfers bind"),
        # t_C = 10 r + 1000 rises to its peak at 10, but t_F = 200 r + 50 passes it at 5.
        (case(100, LinearTime(50, 50), LinearTime(2.5, 1000)), 5.0, "as long as the FFN"),
        (case(100, LinearTime(0, 20)), math.inf, "free"),
    ],
)
def test_the_reason_is_what_happens_there(times: LayerTimes, ratio: float, why: str) -> None:
    found = closed_form(times, [1, 2, 3, 7])
    assert found.ratio == pytest.approx(ratio, rel=1e-2)
    assert why in found.reasoning
    assert "2601.21351" in found.reasoning


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch": 0.0}, "batch"),
        ({"attention_us": math.inf}, "attention_us"),
        ({"ffn": LinearTime(-1.0, 1.0)}, "ffn.slope_us"),
        ({"transfer": LinearTime(1.0, math.nan)}, "transfer.fixed_us"),
    ],
)
def test_impossible_times_are_refused(change: dict[str, object], named: str) -> None:
    times = replace(case(100, LinearTime(1, 1)), **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=named):
        closed_form(times, [1])


@pytest.mark.parametrize("ratios", [[], [0, 1]])
def test_ratios_that_cannot_be_are_refused(ratios: list[int]) -> None:
    with pytest.raises(InputError, match="ratios"):
        closed_form(case(100, LinearTime(1, 1)), ratios)


def test_times_are_those_of_simulated_layers() -> None:
    schedule = load_schedule("recipe_afd")
    model, hardware = load_model(schedule.model), load_hardware("a3-752t")
    times = layer_times(schedule, model, hardware)
    assert times.batch == 4
    # At 1:1 attention is critical: a layer takes its work and hardly any waiting.
    period = evaluate(schedule, model, hardware).layer_us
    assert 0.9 * period < times.attention_us <= period
    assert times.ffn.us(4) > times.transfer.us(4) > 0
    assert times.ffn.slope_us > 0
    slow = layer_times(schedule, model, hardware.with_values({"hbm_read_gbps": 700}))
    assert slow.attention_us > times.attention_us
    assert slow.ffn.us(4) > times.ffn.us(4)
    # What the schedule's own ratio and micro-batches are does not matter, its experts do.
    workload = replace(schedule.workload, global_batch=384)
    other = with_ratio(replace(schedule, workload=workload), 3)
    fewer = layer_times(other, model, hardware)
    assert fewer.batch == 4
    assert fewer.attention_us == pytest.approx(times.attention_us, rel=0.02)
    assert fewer.ffn.us(4) > times.ffn.us(4)


def test_as_a_baseline_it_chooses_among_the_ratios_that_fit() -> None:
    base = load_schedule("recipe_afd")
    model, hardware = load_model(base.model), load_hardware("a3-752t")
    name, schedule, reasoning = closed_form_baseline(base, model, hardware)
    assert isinstance(schedule, Schedule)
    ratio = schedule.deployment.attention_ratio
    assert name == f"closed-form A:F {ratio}:1"
    assert schedule == with_ratio(base, ratio)
    assert rejection(schedule, model, hardware) is None
    assert "2601.21351" in reasoning
    times = layer_times(base, model, hardware)
    # 128 dies: 2, 4, 8, ... parts.
    fitting = [r for r in (1, 3, 7, 15) if rejection(with_ratio(base, r), model, hardware) is None]
    assert ratio == max(fitting, key=times.throughput)
    full = hardware.with_values({"hbm_capacity_bytes": 2**30})
    name, why, _ = closed_form_baseline(base, model, full)
    assert name == "closed-form A:F"
    assert "none of the ratios" in str(why)


def test_colocated_schedules_have_no_ratio() -> None:
    schedule = load_schedule("recipe_colocated")
    with pytest.raises(InputError, match="attention and ffn"):
        layer_times(schedule, load_model(schedule.model), load_hardware("a3-752t"))
