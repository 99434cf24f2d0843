"""What a fit says: errors by kind and against baselines, parameters, what stays degenerate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from calibration.estimate import Estimate
from calibration.kernel import KernelRow
from calibration.kernel_fit import KindFit
from calibration.measurement import END_TO_END, Measurement

# Kinds with fewer rows have left-out errors that say little.
ENOUGH_ROWS = 6


def mean_median(errors: Sequence[float]) -> dict[str, float]:
    """Mean and median of the absolute errors."""
    sizes = [abs(error) for error in errors]
    return {
        "mean_abs_error": statistics.fmean(sizes),
        "median_abs_error": statistics.median(sizes),
    }


def beats_baselines(fit: KindFit) -> bool:
    """Whether left-out rows are predicted better on average than by either baseline."""
    baselines = [mean_median(errors) for errors in (fit.roofline, fit.neighbour) if errors]
    own = mean_median(fit.left_out)["mean_abs_error"]
    return own < min(baseline["mean_abs_error"] for baseline in baselines)


def coverage(kinds: Sequence[KindFit]) -> list[tuple[str, float, int]]:
    """For each die: the share of left-out rows that their 80% intervals cover, and their count.

    Kinds of one row are left out: no other row sets their interval.
    """
    totals = []
    for die in sorted({fit.hardware for fit in kinds}):
        own = [(fit.coverage, len(fit.rows)) for fit in kinds if fit.hardware == die]
        checked = [(share, count) for share, count in own if share is not None]
        count = sum(count for _, count in checked)
        if count:
            totals.append((die, sum(share * rows for share, rows in checked) / count, count))
    return totals


def fit_payload(
    rows: Sequence[Measurement],
    result: Estimate,
    kernels: Sequence[KernelRow],
    kinds: Sequence[KindFit],
) -> dict[str, object]:
    """The fit as result.json holds it."""
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
                "standard_error": p.standard_error,
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
        "shared_kernels": [_kernel(row, row.predicted_us(result.hardware)) for row in kernels],
        "degenerate": _pairs(result.degenerate),
        "kinds": [_kind_payload(fit) for fit in kinds],
        "coverage": [
            {"hardware": die, "coverage": share, "count": count}
            for die, share, count in coverage(kinds)
        ],
    }


def _pairs(degenerate: Sequence[tuple[str, str, float]]) -> list[dict[str, object]]:
    return [{"parameters": [a, b], "correlation": value} for a, b, value in degenerate]


def _kernel(row: KernelRow, predicted_us: float) -> dict[str, object]:
    return {
        "source_row": row.row,
        "kind": row.kind,
        "measured_us": row.measured_us,
        "simulated_us": predicted_us,
        "error": predicted_us / row.measured_us - 1,
    }


def _kind_payload(fit: KindFit) -> dict[str, object]:
    return {
        "hardware": fit.hardware,
        "kind": fit.kind,
        "count": len(fit.rows),
        "in_sample": mean_median(fit.in_sample),
        "left_out": mean_median(fit.left_out),
        "grouped": mean_median(fit.grouped),
        "roofline": mean_median(fit.roofline),
        "neighbour": mean_median(fit.neighbour) if fit.neighbour else None,
        "beats_baselines": beats_baselines(fit),
        "coverage": fit.coverage,
        "spread": fit.spread,
        "degenerate": _pairs(fit.degenerate),
        "parameters": [
            {
                "name": p.name,
                "value": p.value,
                "low": p.low,
                "high": p.high,
                "learned": p.learned,
                "log_standard_error": p.standard_error,
            }
            for p in fit.parameters
        ],
        "rows": [
            {"source_row": row.row, "setting": row.setting, "in_sample": a, "left_out": b}
            for row, a, b in zip(fit.rows, fit.in_sample, fit.left_out, strict=True)
        ],
    }


def print_kinds(console: Console, kinds: Sequence[KindFit]) -> None:
    """Errors of each kind: mean / median in percent."""
    table = Table(title="Kernels by kind: absolute error, mean / median in %")
    for name in ("die", "kind"):
        table.add_column(name)
    for name in ("rows", "in sample", "left out", "grouped", "roofline", "neighbour", "80% covers"):
        table.add_column(name, justify="right")
    for fit in sorted(kinds, key=lambda f: (f.hardware, -len(f.rows))):
        series = (fit.in_sample, fit.left_out, fit.grouped, fit.roofline, fit.neighbour)
        mark = "" if beats_baselines(fit) or len(fit.rows) < ENOUGH_ROWS else " *"
        table.add_row(
            fit.hardware,
            fit.kind + mark,
            str(len(fit.rows)),
            *(_percent(errors) for errors in series),
            "-" if fit.coverage is None else f"{fit.coverage:.0%}",
        )
    console.print(table)
    console.print(
        "left out: each row predicted from the others; grouped: from rows of other scenarios or "
        "shapes.  roofline: bytes at HBM's nominal rate or MACs at the cube's (a collective's "
        "bytes at their fitted cost), times one efficiency from the other rows; neighbour: the "
        "time of the nearest other row. "
        f"*: {ENOUGH_ROWS} rows or more and no better than a baseline"
    )
    for die, share, count in coverage(kinds):
        console.print(f"{die}: 80% intervals cover {share:.0%} of {count} left-out rows")
    for fit in kinds:
        for a, b, value in fit.degenerate:
            console.print(
                f"{fit.hardware} {fit.kind}: cannot tell {a} from {b} (correlation {value:+.2f})"
            )


def _percent(errors: Sequence[float]) -> str:
    if not errors:
        return "-"
    line = mean_median(errors)
    return f"{100 * line['mean_abs_error']:.1f} / {100 * line['median_abs_error']:.1f}"


def print_steps(
    console: Console,
    rows: Sequence[Measurement],
    result: Estimate,
    kernels: Sequence[KernelRow],
) -> None:
    """Parameters of the steps' fit and its in-sample errors."""
    table = Table(title="Parameters fitted to the steps of LongCat-Flash (80% intervals)")
    for name in ("parameter", "prior", "fitted", "std error", "low", "high", "learned from data"):
        table.add_column(name, justify="left" if name == "parameter" else "right")
    for p in result.parameters:
        numbers = (p.prior.centre, p.value, p.standard_error, p.low, p.high)
        table.add_row(p.name, *(f"{x:.4g}" for x in numbers), f"{p.learned:.0%}")
    console.print(table)
    ops = [
        predicted / row.measured_us - 1
        for row, predicted in zip(rows, result.predicted_us, strict=True)
        if row.kind != END_TO_END
    ]
    console.print(
        f"op rows: mean absolute error {mean_median(ops)['mean_abs_error']:.1%} (in sample)"
    )
    for row, predicted in zip(rows, result.predicted_us, strict=True):
        if row.kind == END_TO_END:
            console.print(f"{row.row}: {predicted / row.measured_us - 1:+.2%} (in sample)")
    for kind in sorted({row.kind for row in kernels}):
        errors = [
            row.predicted_us(result.hardware) / row.measured_us - 1
            for row in kernels
            if row.kind == kind
        ]
        line = mean_median(errors)
        console.print(
            f"{kind} kernels with the steps' parameters: mean {line['mean_abs_error']:.1%}, "
            f"median {line['median_abs_error']:.1%} (in sample)"
        )
    for a, b, value in result.degenerate:
        console.print(f"the data cannot tell {a} from {b} (correlation {value:+.2f})")
