"""``python -m calibration.fit``: fit the die's parameters to the published rows.

Writes the parameter file of the die (evidence, interval and source of every fitted number
included), result.json and a table; nothing is changed outside the run folder.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from calibration.estimate import Estimate, estimate
from calibration.measurement import END_TO_END, Measurement, shipped_measurements
from calibration.predict import setting_of
from calibration.prior import shipped_priors
from hardware_models.hardware import Hardware, load_hardware, render_hardware, shipped_text
from twin.cli import run
from twin.results import write_result, write_text, write_timing


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """Configuration of the command: the shipped die to fit."""

    die: str


def main(config: FitConfig, folder: Path) -> None:
    """Fit, write the parameter file and report."""
    began = time.perf_counter()
    rows = shipped_measurements()
    hardware = load_hardware(config.die)
    priors = shipped_priors(config.die)
    settings = [setting_of(row) for row in rows]
    columns = (SpinnerColumn(), TextColumn("fitting: {task.completed} simulations of all rows"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("fit", total=None)
        result = estimate(rows, settings, hardware, priors, lambda: progress.advance(task))
    fitted = _with_evidence(result, len(rows))
    write_text(folder / f"{config.die}.yaml", render_hardware(fitted, shipped_text(config.die)))
    write_result(folder, "calibration.fit", 0, _payload(rows, result))
    write_timing(folder, time.perf_counter() - began, {})
    _print(rows, result, folder / f"{config.die}.yaml")


def _with_evidence(result: Estimate, count: int) -> Hardware:
    """The fitted hardware, every moved parameter with its interval and where it came from."""
    parameters = dict(result.hardware.parameters)
    for item in result.parameters:
        old = parameters[item.name]
        share = round(100 * item.learned)
        parameters[item.name] = replace(
            old,
            value=_digits(item.value),
            low=min(_digits(item.low), _digits(item.value)),
            high=max(_digits(item.high), _digits(item.value)),
            evidence="fitted",
            source=f"calibration.fit to {count} published LongCat-Flash rows, which removed "
            f"{share}% of the prior's uncertainty; prior: {item.prior.source}",
        )
    return Hardware(result.hardware.name, parameters)


def _digits(value: float) -> float:
    """Four significant digits: more would claim what the data do not hold."""
    return float(f"{value:.4g}")


def _payload(rows: list[Measurement], result: Estimate) -> dict[str, object]:
    return {
        "parameters": [
            {
                "name": p.name,
                "prior": p.prior.centre,
                "prior_range": list(p.prior.range),
                "value": p.value,
                "low": p.low,
                "high": p.high,
                "learned": p.learned,
            }
            for p in result.parameters
        ],
        "rows": [
            {
                "source_row": row.row,
                "kind": row.kind,
                "setting": row.setting,
                "measured_us": row.measured_us,
                "simulated_us": predicted,
                "error": predicted / row.measured_us - 1,
            }
            for row, predicted in zip(rows, result.predicted_us, strict=True)
        ],
        "degenerate": [
            {"parameters": [a, b], "correlation": value} for a, b, value in result.degenerate
        ],
    }


def _print(rows: list[Measurement], result: Estimate, path: Path) -> None:
    console = Console()
    table = Table(title="Fitted parameters (80% intervals)")
    for name in ("parameter", "prior", "fitted", "low", "high", "learned from data"):
        table.add_column(name, justify="left" if name == "parameter" else "right")
    for p in result.parameters:
        numbers = (p.prior.centre, p.value, p.low, p.high)
        table.add_row(p.name, *(f"{x:.4g}" for x in numbers), f"{p.learned:.0%}")
    console.print(table)
    ops = [
        abs(predicted / row.measured_us - 1)
        for row, predicted in zip(rows, result.predicted_us, strict=True)
        if row.kind != END_TO_END
    ]
    console.print(f"op rows: mean absolute error {sum(ops) / len(ops):.1%} (in sample)")
    for row, predicted in zip(rows, result.predicted_us, strict=True):
        if row.kind == END_TO_END:
            console.print(f"{row.row}: {predicted / row.measured_us - 1:+.2%} (in sample)")
    for a, b, value in result.degenerate:
        console.print(f"the data cannot tell {a} from {b} (correlation {value:+.2f})")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(run("fit", FitConfig, main))
