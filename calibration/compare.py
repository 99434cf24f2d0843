"""``python -m calibration.compare``: what was measured beside what the twin says.

The shipped rows are the ones that the parameters were fitted to: their errors are in-sample.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from calibration.layer_table import LayerOp, layer_ops
from calibration.measurement import (
    END_TO_END,
    Measurement,
    parse_measurements,
    shipped_measurements,
)
from calibration.predict import Setting, predict, setting_of
from hardware_models.hardware import Hardware
from hardware_models.parameter import Evidence
from hardware_models.yaml_io import read_text
from twin.choices import HardwareChoice
from twin.cli import run
from twin.evaluate import weakest_evidence
from twin.results import write_result, write_timing
from twin.uncertainty import COVERAGE, draw_hardware

# Steps whose layer is shown op by op, so that errors which cancel are seen.
LAYERS_SHOWN = ("recipe_colocated", "recipe_afd")

# Acceptances at which the step time behind a published TPOT is worked out: the benchmark's
# own acceptance is not published, and TPOT = step / (1 + acceptance).
ACCEPTANCES = (1.1, 1.15, 1.2, 1.44, 1.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """Configuration of the command."""

    hardware: HardwareChoice
    measurements: str | None
    draws: int
    seed: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row: measured, simulated, the 80% interval of the simulation, the evidence."""

    row: Measurement
    simulated_us: float
    low_us: float
    high_us: float
    evidence: Evidence

    @property
    def error(self) -> float:
        """Simulated over measured, less one."""
        return self.simulated_us / self.row.measured_us - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.low_us <= self.row.measured_us <= self.high_us


def compare(
    rows: Sequence[Measurement],
    settings: Sequence[Setting],
    hardware: Hardware,
    variants: Sequence[Hardware],
) -> list[Comparison]:
    """Simulate every row's setting, and again for each variant of the parameters."""
    simulated = predict(rows, settings, hardware)
    drawn = np.array(
        [
            predict(rows, settings, variant)
            for variant in track(variants, "intervals", console=Console(stderr=True))
        ]
    )
    tail = (1 - COVERAGE) / 2
    low, high = (
        np.quantile(drawn, [tail, 1 - tail], axis=0)
        if len(variants)
        else (np.array(simulated), np.array(simulated))
    )
    fitted_rows = {row.row for row in shipped_measurements()}
    return [
        Comparison(
            row,
            value,
            float(min(low[i], value)),
            float(max(high[i], value)),
            "fitted" if row.row in fitted_rows else weakest_evidence(hardware),
        )
        for i, (row, value) in enumerate(zip(rows, simulated, strict=True))
    ]


def main(config: CompareConfig, folder: Path) -> None:
    """Compare, print the tables and write the results."""
    began = time.perf_counter()
    rows = _rows(config.measurements)
    settings = [setting_of(row) for row in rows]
    hardware = config.hardware.load(rows[0].hardware)
    variants = draw_hardware(hardware, config.draws, config.seed) if config.draws else []
    comparisons = compare(rows, settings, hardware, variants)
    layers = {name: layer_ops(name, hardware) for name in LAYERS_SHOWN}
    implied = _implied_steps(rows)
    write_result(
        folder,
        "calibration.compare",
        config.seed,
        {
            "rows": [_row_payload(c) for c in comparisons],
            "summary": _summary(comparisons),
            "layer_ops": {name: [op.payload() for op in ops] for name, ops in layers.items()},
            "free_scalars": _free_scalars(hardware, settings),
            "implied_step_us": implied,
        },
    )
    write_timing(folder, time.perf_counter() - began, {})
    _print(comparisons, layers, hardware, settings, implied, bool(variants))


def _rows(path: str | None) -> list[Measurement]:
    if path is None:
        return shipped_measurements()
    return parse_measurements(read_text(Path(path), "measurements"), path)


def _row_payload(c: Comparison) -> dict[str, object]:
    return {
        "source_row": c.row.row,
        "kind": c.row.kind,
        "setting": c.row.setting,
        "measured_us": c.row.measured_us,
        "simulated_us": c.simulated_us,
        "low_us": c.low_us,
        "high_us": c.high_us,
        "error": c.error,
        "evidence": c.evidence,
        "status": "modelled",
        "reason": "",
        "source": c.row.source,
    }


def _summary(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault(c.row.kind, []).append(c)
    ops = [c for c in comparisons if c.row.kind != END_TO_END]
    if ops:
        groups["all_ops"] = ops
    return {
        kind: {
            "count": len(members),
            "mean_abs_error": statistics.fmean(abs(c.error) for c in members),
            "median_abs_error": statistics.median(abs(c.error) for c in members),
            "coverage": statistics.fmean(c.covered for c in members),
        }
        for kind, members in groups.items()
    }


def _free_scalars(hardware: Hardware, settings: Sequence[Setting]) -> list[dict[str, object]]:
    """Everything that was set rather than known: fitted parameters and the acceptance."""
    scalars: list[dict[str, object]] = [
        {
            "name": p.name,
            "value": p.value,
            "unit": p.unit,
            "low": p.low,
            "high": p.high,
            "evidence": p.evidence,
        }
        for p in hardware
        if p.evidence in ("fitted", "guessed")
    ]
    acceptance = settings[0].schedule.workload.acceptance
    scalars.append(
        {
            "name": "workload.acceptance",
            "value": acceptance,
            "unit": "accepted drafts per step",
            "low": min(ACCEPTANCES),
            "high": max(ACCEPTANCES),
            "evidence": "guessed",
        }
    )
    return scalars


def _implied_steps(rows: Sequence[Measurement]) -> list[dict[str, object]]:
    return [
        {
            "source_row": row.row,
            "acceptance": acceptance,
            "step_us": row.measured_us * (1 + acceptance),
        }
        for row in rows
        if row.kind == END_TO_END
        for acceptance in ACCEPTANCES
    ]


def _print(
    comparisons: Sequence[Comparison],
    layers: dict[str, list[LayerOp]],
    hardware: Hardware,
    settings: Sequence[Setting],
    implied: Sequence[dict[str, object]],
    with_intervals: bool,
) -> None:
    console = Console()
    table = Table(title=f"Measured and simulated latencies on {hardware.name}")
    table.add_column("row")
    for name in ("measured us", "simulated us", "80% interval", "error", "evidence"):
        table.add_column(name, justify="right")
    for c in comparisons:
        interval = f"{c.low_us:.1f} .. {c.high_us:.1f}" if with_intervals else "-"
        numbers = (f"{c.row.measured_us:.1f}", f"{c.simulated_us:.1f}", interval)
        table.add_row(c.row.row, *numbers, f"{c.error:+.1%}", c.evidence)
    console.print(table)
    for kind, line in _summary(comparisons).items():
        console.print(
            f"{kind}: {line['count']} rows, mean absolute error {line['mean_abs_error']:.1%}, "
            f"median {line['median_abs_error']:.1%}, interval covers {line['coverage']:.0%}"
        )
    console.print("evidence 'fitted': the parameters were fitted to this row (in-sample error)")
    for name, ops in layers.items():
        console.print(_layer_table(name, ops))
    console.print(_scalar_table(hardware, settings))
    console.print("Step time behind a published TPOT, by the acceptance it may have had:")
    for entry in implied:
        console.print(
            f"  {entry['source_row']}: acceptance {entry['acceptance']}: "
            f"{float(str(entry['step_us'])) / 1000:.2f} ms"
        )


def _layer_table(name: str, ops: Sequence[LayerOp]) -> Table:
    table = Table(title=f"One steady layer of {name}, op by op")
    for column in ("op", "stream", "start us", "us", "wait us", "bound"):
        right = column.endswith("us")
        table.add_column(column, justify="right" if right else "left")
    for op in ops:
        times = (f"{op.start_us:.1f}", f"{op.duration_us:.1f}", f"{op.wait_us:.1f}")
        table.add_row(op.name, op.stream, *times, op.bound)
    return table


def _scalar_table(hardware: Hardware, settings: Sequence[Setting]) -> Table:
    table = Table(title="Free scalars: what was fitted or guessed")
    for column in ("name", "value", "range", "unit", "evidence"):
        table.add_column(column)
    for s in _free_scalars(hardware, settings):
        span = f"{s['low']:g} .. {s['high']:g}"
        table.add_row(str(s["name"]), f"{s['value']:g}", span, str(s["unit"]), str(s["evidence"]))
    return table


if __name__ == "__main__":
    sys.exit(run("compare", CompareConfig, main))
