"""``python -m calibration.fit profiles=PATH``: fit, write and report what a profile taught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from calibration.next_measurement import Candidate, rank_candidates
from calibration.profile_fit import ProfileFit, fit_profile
from calibration.profiles.measured import find_runs, refuse_simulated
from calibration.profiles.rows import ProfileRows, rows_of
from calibration.profiles.shown import shown
from calibration.stayed import NO_LAUNCH, Stayed, stayed
from hardware_models.demand import OpSpec
from hardware_models.errors import InputError
from hardware_models.hardware import (
    Hardware,
    render_hardware,
    shipped_hardware,
    shipped_text,
)
from hardware_models.yaml_io import read_text
from twin.choices import HardwareChoice
from twin.graph.build import build_step_graph
from twin.models import load_model
from twin.report.table import console as wide_console
from twin.results import write_result, write_text
from twin.schedule_io import load_schedule

_SHOWN = 12
_CANDIDATES = 5
_LAYERS = 4
_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFitOptions:
    """What the fit to profiles is told beside the die; see the command's ``--help``."""

    profiles: str
    schedule: str
    kv_tokens: int
    ep: int

    def check(self) -> None:
        """Refuse numbers out of range.

        Raises:
            InputError: names the key.
        """
        for key, value in (("kv_tokens", self.kv_tokens), ("ep", self.ep)):
            if value < 0:
                raise InputError(key, value, "a whole number from 0 (0: not known)")


def fit_profiles(options: ProfileFitOptions, choice: HardwareChoice, folder: Path) -> None:
    """Fit the die to the profile, write its parameter file and result.json, and print.

    Raises:
        InputError: the profile, the die or the schedule is wrong, the profile is a simulation,
            or no kernel of it has a model.
    """
    options.check()
    die = choice.die or load_schedule(options.schedule).deployment.hardware
    hardware = choice.load(die)
    specs = _step_specs(options.schedule, hardware)
    runs = find_runs(Path(options.profiles))
    refuse_simulated(runs)
    name = shown(Path(options.profiles).resolve().name)
    found = rows_of(runs, hardware, options.kv_tokens, options.ep, f"profile {name}")
    if not found.rows:
        reasons = "; ".join(reason for reason, _, _ in found.left_out[:3]) or "no readable row"
        allowed = f"a profile with kernels that are modelled ({shown(reasons, 200)})"
        raise InputError("profiles", options.profiles, allowed)
    columns = (SpinnerColumn(), TextColumn("fitting: {task.completed} groups of kinds"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("fit", total=None)
        fit = fit_profile(found.rows, hardware, f"profile {name}", lambda: progress.advance(task))
    candidates = rank_candidates(specs, fit.hardware, fit.names, fit.covariance)
    template = shipped_text(die) if die in shipped_hardware() else read_text(Path(die), "die")
    write_text(folder / f"{hardware.name}.yaml", render_hardware(fit.hardware, template))
    write_result(folder, "calibration.fit", 0, _payload(fit, found, candidates))
    _print(fit, found, candidates)
    Console().print(f"wrote {hardware.name}.yaml into {shown(str(folder), 200)}")


def _step_specs(schedule: str, hardware: Hardware) -> list[OpSpec]:
    """The ops of a step on the first die: what a next measurement is chosen from."""
    loaded = load_schedule(schedule)
    graph = build_step_graph(loaded, load_model(loaded.model), hardware, layers=_LAYERS)
    return [op.spec for op in graph.ops if op.die == graph.dies[0].index]


def _payload(
    fit: ProfileFit, found: ProfileRows, candidates: Sequence[Candidate]
) -> dict[str, Any]:
    moved = [asdict(p) | {"change": p.change} for p in fit.parameters if p.has_moved]
    return {
        "hardware": fit.hardware.name,
        "rows": len(found.rows),
        "launches": found.launches,
        "kinds": [asdict(row) for row in fit.errors],
        "moved": sorted(moved, key=lambda row: -abs(row["change"])),
        "stayed_prior": [asdict(row) for row in stayed(fit, found.rows)],
        "next_measurements": [asdict(row) for row in candidates[:_CANDIDATES]],
        "left_out": [
            {"reason": reason, "count": count, "share": share}
            for reason, count, share in found.left_out
        ],
        "skipped": [asdict(row) for row in found.skipped],
    }


def _print(fit: ProfileFit, found: ProfileRows, candidates: Sequence[Candidate]) -> None:
    out = wide_console()
    out.print(f"{found.launches} launches in {len(found.rows)} rows of {len(fit.errors)} kinds")
    errors = Table(title="Median errors by kind")
    for name in ("kind", "rows", "by the prior", "fitted", "held out"):
        errors.add_column(name, justify="left" if name == "kind" else "right")
    for row in fit.errors:
        held = "-" if row.held_out is None else f"{row.held_out:.1%}"
        errors.add_row(row.kind, str(row.rows), f"{row.prior:.1%}", f"{row.fitted:.1%}", held)
    out.print(errors)
    moved = sorted((p for p in fit.parameters if p.has_moved), key=lambda p: -abs(p.change))
    table = Table(title=f"{len(moved)} parameters moved")
    for name in ("parameter", "unit", "prior (80%)", "fitted (80%)", "change", "learned"):
        table.add_column(name)
    for p in moved:
        table.add_row(
            p.name,
            p.unit,
            f"{p.prior:.4g} ({p.prior_range[0]:.4g} .. {p.prior_range[1]:.4g})",
            f"{p.value:.4g} ({p.range[0]:.4g} .. {p.range[1]:.4g})",
            f"{p.change:+.1%}",
            f"{p.learned:.0%}",
        )
    out.print(table)
    reasons = _by_reason(stayed(fit, found.rows))
    out.print(f"{sum(map(len, reasons.values()))} stayed at their priors (listed in result.json):")
    for reason, names in reasons.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        out.print(f"  {', '.join(names[:_NAMED])}{more}: {reason}")
    for reason, count, share in found.left_out[:_SHOWN]:
        out.print(f"left out: {count} launches, {share:.1%} of the time: {shown(reason, 120)}")
    if candidates:
        best = candidates[0]
        out.print(
            f"Next measurement: {best.kernel} ({best.interval_us[0]:.1f} .. "
            f"{best.interval_us[1]:.1f} us now): the step's kernels would be known to "
            f"+-{best.after_us:.1f} us instead of +-{best.before_us:.1f} us"
        )


def _by_reason(rows: Sequence[Stayed]) -> dict[str, list[str]]:
    """Names by reason; kinds without a launch are one."""
    found: dict[str, list[str]] = {}
    for row in rows:
        absent = row.reason.startswith(NO_LAUNCH)
        found.setdefault(f"{NO_LAUNCH} of their kinds" if absent else row.reason, []).append(
            row.name
        )
    return found
