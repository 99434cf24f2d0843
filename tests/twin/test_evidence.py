"""Evidence counts what moves the number; shapes outside of the fit are named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardware_models.fitted import Correlation
from hardware_models.hardware import Hardware, load_hardware
from hardware_models.parameter import Parameter
from twin.evaluate import evaluate
from twin.evidence import evidence_of, extrapolated_kinds, with_evidence
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.uncertainty import draw_hardware

HARDWARE = load_hardware("a3-752t")
SCHEDULE = load_schedule("tiny_colocated")
MODEL = load_model(SCHEDULE.model)


def _with(hardware: Hardware, name: str, **changes: object) -> Hardware:
    changed = replace(hardware.parameters[name], **changes)  # type: ignore[arg-type]
    return replace(hardware, parameters={**hardware.parameters, name: changed})


def _measured() -> Hardware:
    """The die as if everything had been measured exactly."""
    exact = {p.name: replace(p, low=p.value, high=p.value, evidence="measured") for p in HARDWARE}
    return replace(HARDWARE, parameters=exact)


def test_only_a_parameter_that_moves_the_number_weakens_its_evidence() -> None:
    die = _measured()
    assert evidence_of(SCHEDULE, MODEL, die) == "measured"
    head = die["cube_head_us"]
    still = _with(die, "cube_head_us", evidence="guessed", high=head * 1.0001)
    assert evidence_of(SCHEDULE, MODEL, still) == "measured"
    moving = _with(die, "cube_head_us", evidence="guessed", high=head * 6)
    assert evidence_of(SCHEDULE, MODEL, moving) == "guessed"


def test_a_parameter_that_no_op_reads_does_not_count() -> None:
    die = _with(_measured(), "spread_matmul", evidence="guessed", low=0.0, high=9.0)
    assert evidence_of(SCHEDULE, MODEL, die) == "measured"


def test_kinds_outside_of_the_fitted_shapes_are_named() -> None:
    plain = evaluate(SCHEDULE, MODEL, HARDWARE)
    assert "matmul" in with_evidence(plain, MODEL, HARDWARE).extrapolated
    published = load_schedule("recipe_colocated")
    model = load_model(published.model)
    assert with_evidence(evaluate(published, model, HARDWARE), model, HARDWARE).extrapolated == ()
    longer = replace(published, workload=replace(published.workload, kv_tokens=100_000))
    found = with_evidence(evaluate(longer, model, HARDWARE), model, HARDWARE).extrapolated
    assert found == ("mla_attention",)
    unknown = replace(HARDWARE, fitted_shapes={})
    assert extrapolated_kinds((op.spec for op in plain.graph.ops), unknown) == ()


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_draws_carry_the_correlations_of_the_fit(correlation: float) -> None:
    parameters = {
        name: Parameter(name, 2.0, "us", 1.0, 3.0, "fitted", "test") for name in ("a_us", "b_us")
    }
    group = Correlation(("a_us", "b_us"), ((1.0,), (correlation, 1.0)))
    drawn = draw_hardware(Hardware("die", parameters, (group,)), 500, seed=1)
    points = np.array([[die["a_us"], die["b_us"]] for die in drawn])
    assert np.corrcoef(points.T)[0, 1] == pytest.approx(correlation, abs=0.1)
    assert points.min() >= 1.0
    assert points.max() <= 3.0
    assert np.median(points, axis=0) == pytest.approx([2.0, 2.0], abs=0.1)
    again = draw_hardware(Hardware("die", parameters, (group,)), 500, seed=1)
    assert [die["b_us"] for die in again] == points[:, 1].tolist()
