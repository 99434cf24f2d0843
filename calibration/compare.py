"""``python -m calibration.compare``: what was measured beside what the twin says.

Reads published tables as they are, and the project's own; the shipped rows are the ones that
the parameters were fitted to: their errors are in-sample.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from calibration.compare_runs import compare_runs
from calibration.compare_sealed import Measured, compare_sealed
from calibration.comparison import (
    Comparison,
    compare_kernels,
    compare_steps,
    is_end_to_end,
)
from calibration.kernel import KernelRow
from calibration.layer_table import LayerOp, layer_ops, outside_ops
from calibration.measurement import (
    END_TO_END,
    Measurement,
    shipped_measurements,
)
from calibration.predict import Setting
from calibration.scatter import scatter_svg
from calibration.tables import Row, load_rows
from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.choices import HardwareChoice
from twin.cli import run
from twin.report.table import console as wide_console
from twin.results import write_result, write_text, write_timing
from twin.uncertainty import DRAWS, draw_hardware

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
    profiles: str | None
    sealed: str | None
    sealed_hash: str | None
    measured: Measured
    draws: int
    seed: int

    def check(self) -> None:
        """Refuse numbers out of range and keys that do not go together.

        Raises:
            InputError: names the key.
        """
        for key, count in (("draws", self.draws), ("seed", self.seed)):
            if count < 0:
                raise InputError(key, count, "a whole number from 0")
        if self.measurements is not None and (self.profiles or self.sealed):
            other = "sealed=" if self.sealed else "profiles="
            raise InputError("measurements", self.measurements, f"null with {other}")
        if self.sealed is not None:
            for name, chosen in asdict(self.hardware).items():
                if chosen:
                    allowed = "none with sealed=FILE, which has parameters of its own"
                    raise InputError(f"hardware.{name}", chosen, allowed)
            for key, count, default in (("draws", self.draws, DRAWS), ("seed", self.seed, 0)):
                if count != default:
                    allowed = f"{default} with sealed=FILE, whose interval is drawn already"
                    raise InputError(key, count, allowed)
        else:
            for name, value in self.measured.given().items():
                raise InputError(f"measured.{name}", value, "null without sealed=FILE")
            if self.sealed_hash is not None:
                raise InputError("sealed_hash", self.sealed_hash, "null without sealed=FILE")


def main(config: CompareConfig, folder: Path) -> None:
    """Compare, print the tables and write the results.

    Raises:
        InputError: a key, a file or a measurement is wrong, or a sealed file was altered.
    """
    began = time.perf_counter()
    config.check()
    if config.sealed is not None:
        against = (config.measured, config.profiles)
        compare_sealed(Path(config.sealed), config.sealed_hash, *against, config.seed, folder)
        write_timing(folder, time.perf_counter() - began, {})
        return
    if config.profiles is not None:
        compare_runs(Path(config.profiles), config.hardware, config.draws, config.seed, folder)
        write_timing(folder, time.perf_counter() - began, {})
        return
    rows: list[Row] = list(shipped_measurements())
    if config.measurements is not None:
        rows = load_rows(config.measurements)
    dies: dict[str, Hardware] = {}

    def die_of(name: str) -> Hardware:
        if name not in dies:
            dies[name] = config.hardware.load(name)
        return dies[name]

    kernels = [row for row in rows if isinstance(row, KernelRow)]
    comparisons = compare_kernels(kernels, die_of)
    payload: dict[str, object] = {}
    steps = [row for row in rows if isinstance(row, Measurement)]
    report = None
    if steps:
        hardware = die_of(steps[0].hardware)
        variants = draw_hardware(hardware, config.draws, config.seed) if config.draws else []
        answer = compare_steps(steps, hardware, variants)
        comparisons += answer.comparisons
        layers = {name: layer_ops(name, hardware) for name in LAYERS_SHOWN}
        outside = outside_ops(LAYERS_SHOWN[0], hardware)
        report = _StepReport(hardware, answer.settings, layers, outside, _implied_steps(steps))
        payload = {
            "layer_ops": {name: [op.payload() for op in ops] for name, ops in layers.items()},
            "outside_ops": [op.payload() for op in outside],
            "free_scalars": _free_scalars(hardware, answer.settings),
            "implied_step_us": report.implied,
        }
    summary = _summary(comparisons)
    unsupported = sum(not c.modelled for c in comparisons)
    write_result(
        folder,
        "calibration.compare",
        config.seed,
        {
            "rows": [c.payload() for c in comparisons],
            "summary": summary,
            "modelled": len(comparisons) - unsupported,
            "unsupported": unsupported,
            **payload,
        },
    )
    title = f"{config.measurements or 'shipped rows'}: measured and simulated"
    write_text(folder / "scatter.svg", scatter_svg(comparisons, title))
    write_timing(folder, time.perf_counter() - began, {})
    _print(comparisons, summary, unsupported)
    if report is not None:
        _print_steps(report)


@dataclass(frozen=True, slots=True)
class _StepReport:
    hardware: Hardware
    settings: Sequence[Setting]
    layers: dict[str, list[LayerOp]]
    outside: Sequence[LayerOp]
    implied: Sequence[dict[str, object]]


def _summary(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float | None]]:
    groups: dict[str, list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault(c.row.kind, []).append(c)
    ops = [c for c in comparisons if not is_end_to_end(c)]
    if ops:
        groups["all_ops"] = ops
    lines: dict[str, dict[str, float | None]] = {}
    for kind, members in groups.items():
        errors = [abs(c.error) for c in members if c.error is not None]
        held = [c.covered for c in members if c.modelled and c.has_interval]
        lines[kind] = {
            "count": len(errors),
            "unsupported": len(members) - len(errors),
            "mean_abs_error": statistics.fmean(errors) if errors else None,
            "median_abs_error": statistics.median(errors) if errors else None,
            "coverage": statistics.fmean(held) if held else None,
        }
    return lines


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
    if not settings:
        return scalars
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
    summary: dict[str, dict[str, float | None]],
    unsupported: int,
) -> None:
    console = wide_console()
    table = Table(title="Measured and simulated latencies")
    table.add_column("row", overflow="fold")
    table.add_column("kind")
    for name in ("measured us", "simulated us", "80% interval", "error", "evidence"):
        table.add_column(name, justify="right")
    for c in comparisons:
        if c.simulated_us is None:
            table.add_row(c.row.row, c.row.kind, f"{c.row.measured_us:.1f}", "-", "-", "-", "-")
            continue
        numbers = (
            f"{c.row.measured_us:.1f}",
            f"{c.simulated_us:.1f}",
            f"{c.low_us:.1f} .. {c.high_us:.1f}",
            f"{c.error:+.1%}",
        )
        table.add_row(c.row.row, c.row.kind, *numbers, c.evidence)
    console.print(table)
    for kind, line in summary.items():
        if line["mean_abs_error"] is None:
            console.print(f"{kind}: no model, {line['unsupported']} rows")
            continue
        console.print(
            f"{kind}: {line['count']} rows, mean absolute error {line['mean_abs_error']:.1%}, "
            f"median {line['median_abs_error']:.1%}"
            + ("" if line["coverage"] is None else f", interval covers {line['coverage']:.0%}")
        )
    for c in comparisons:
        if not c.modelled:
            console.print(f"not modelled: {c.row.row}: {c.reason}")
    console.print(f"{len(comparisons) - unsupported} of {len(comparisons)} rows modelled")
    console.print(
        "evidence 'fitted': the parameters were fitted to this row (in-sample error); "
        "'extrapolated': outside of the fitted shapes"
    )


def _print_steps(report: _StepReport) -> None:
    console = wide_console()
    for name, ops in report.layers.items():
        console.print(_layer_table(f"One steady layer of {name}, op by op", ops))
    title = f"Outside the layers of {LAYERS_SHOWN[0]}: output head and MTP, op by op"
    console.print(_layer_table(title, report.outside))
    console.print(_scalar_table(report.hardware, report.settings))
    console.print("Step time behind a published TPOT, by the acceptance it may have had:")
    for entry in report.implied:
        console.print(
            f"  {entry['source_row']}: acceptance {entry['acceptance']}: "
            f"{float(str(entry['step_us'])) / 1000:.2f} ms"
        )


def _layer_table(title: str, ops: Sequence[LayerOp]) -> Table:
    table = Table(title=title)
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
