"""The fit of kernels: it finds what made the rows, and meets the targets on left-out rows."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.kernel import KernelRow
from calibration.kernel_fit import solve, spread_of
from calibration.prior import shipped_priors
from calibration.tables.own import shipped_kernels
from hardware_models.hardware import load_hardware
from hardware_models.ops.alone import alone_us

DIE = load_hardware("910b2")

# Mean and median absolute error on left-out rows, at most.
TARGETS = {
    ("a3-752t", "matmul"): (0.10, 0.06),
    ("a3-752t", "quant_matmul"): (0.15, 0.09),
    ("a3-752t", "hccl_collective"): (0.15, 0.15),
    ("910b2", "mla_prolog"): (0.05, 0.05),
    ("910b2", "mla_attention"): (0.11, 0.11),
    ("910b2", "grouped_matmul"): (0.11, 0.11),
    ("910b2", "dynamic_quant"): (0.07, 0.07),
    ("910b2", "dequant_swiglu_quant"): (0.13, 0.13),
    ("910b2", "rms_norm"): (0.18, 0.12),
}


@pytest.fixture(scope="module")
def kinds(fitted: Path) -> dict[tuple[str, str], dict[str, object]]:
    loaded = json.loads((fitted / "result.json").read_text("utf-8"))["kinds"]
    return {(kind["hardware"], kind["kind"]): kind for kind in loaded}


@pytest.mark.parametrize("key", TARGETS, ids="/".join)
def test_left_out_rows_meet_the_targets(
    kinds: dict[tuple[str, str], dict[str, dict[str, float]]], key: tuple[str, str]
) -> None:
    left_out = kinds[key]["left_out"]
    mean, median = TARGETS[key]
    assert left_out["mean_abs_error"] <= mean
    assert left_out["median_abs_error"] <= median
    assert kinds[key]["beats_baselines"]


def test_intervals_cover_left_out_rows(kinds: dict[tuple[str, str], dict[str, float]]) -> None:
    enough = [kind for kind in kinds.values() if kind["count"] >= 6]
    rows = sum(kind["count"] for kind in enough)
    covered = sum(kind["coverage"] * kind["count"] for kind in enough)
    assert 0.7 <= covered / rows <= 0.9


def test_the_fit_finds_the_parameters_that_made_the_rows() -> None:
    truth = {"dynamic_quant_head_us": 7.0, "dynamic_quant_row_us": 0.12}
    made = DIE.with_values(truth)
    rows = [
        replace(row, measured_us=row.predicted_us(made))
        for row in shipped_kernels()
        if row.kind == "dynamic_quant" and row.hardware == "910b2"
    ]
    priors = shipped_priors("910b2", "kernels")
    values, _ = solve(rows, DIE, {name: priors[name] for name in truth})
    for name, value in truth.items():
        assert values[name] == pytest.approx(value, rel=0.03)


def test_a_wild_row_does_not_drag_the_fit_away() -> None:
    rows = [
        row for row in shipped_kernels() if row.kind == "dynamic_quant" and row.hardware == "910b2"
    ]
    priors = shipped_priors("910b2", "kernels")
    own = {n: p for n, p in priors.items() if n.startswith("dynamic_quant")}
    wild = [replace(rows[0], measured_us=100 * rows[0].measured_us), *rows[1:]]

    def typical_error(members: list[KernelRow]) -> float:
        die = DIE.with_values(solve(members, DIE, own)[0])
        return statistics.median(
            abs(row.predicted_us(die) / row.measured_us - 1) for row in rows[1:]
        )

    assert typical_error(wild) < typical_error(rows) + 0.05


def test_the_spread_is_the_80_percent_quantile_of_the_errors() -> None:
    errors = [0.01 * i for i in range(1, 20)]
    spread, coverage = spread_of(errors)
    assert 0.14 < spread < 0.18
    assert coverage is not None
    assert 0.75 <= coverage <= 0.9


def test_nothing_covers_a_row_that_stands_alone() -> None:
    assert spread_of([0.3])[1] is None


def test_an_op_alone_takes_its_head_and_its_slowest_part() -> None:
    row = next(row for row in shipped_kernels() if row.kind == "mla_prolog")
    (spec,) = row.specs
    demand = spec.demand(DIE, spec.cores(DIE))
    assert alone_us(spec, DIE) > demand.head_us
    assert alone_us(spec, DIE) >= demand.head_us + demand.cube_us
