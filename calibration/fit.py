"""``python -m calibration.fit``: fit the parameters of the die family to published rows.

Kernel by kernel first (910B2 alone, then A3 in network), with errors on rows that were left
out; then the steps of LongCat-Flash on A3.  Writes a parameter file for each die (evidence,
interval and source of every fitted number included), result.json and tables; nothing is
changed outside the run folder.  With ``profiles`` a profile is fitted instead, with what the
published rows left as priors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from calibration.estimate import Estimate, estimate
from calibration.family import DONOR, SHARED_WITH_STEPS, apart, digits, fit_family, sister
from calibration.fit_profiles import ProfileFitOptions, fit_profiles
from calibration.fit_report import fit_payload, print_kinds, print_steps
from calibration.kernel import KernelRow
from calibration.kernel_fit import quantile_80, spread_of
from calibration.measurement import END_TO_END, Measurement, shipped_measurements
from calibration.predict import setting_of
from calibration.prior import shipped_priors
from calibration.tables.own import shipped_kernels
from hardware_models.errors import InputError
from hardware_models.hardware import Hardware, load_hardware, render_hardware, shipped_text
from hardware_models.shapes import ranges_of
from twin.choices import HardwareChoice
from twin.cli import run
from twin.graph.build import build_step_graph
from twin.report.table import console as wide_console
from twin.results import write_result, write_text, write_timing

STEPS_DIE = "a3-752t"
SISTERS = ("a3-560t",)
_SCHEDULE = "recipe_colocated"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """Configuration of the command: the die that is fitted, to published rows or to a profile."""

    hardware: HardwareChoice
    profiles: str | None
    schedule: str
    kv_tokens: int
    ep: int

    def check(self) -> None:
        """Refuse keys that do not go together.

        Raises:
            InputError: names the key.
        """
        if self.profiles is not None:
            return
        if self.hardware.die != STEPS_DIE:
            allowed = f"{STEPS_DIE}, the die with published steps"
            raise InputError("hardware.die", self.hardware.die, allowed)
        if self.hardware.values:
            allowed = "none without profiles: published rows are fitted from the shipped values"
            raise InputError("hardware.values", dict(self.hardware.values), allowed)
        for key, default in (("schedule", _SCHEDULE), ("kv_tokens", 0), ("ep", 0)):
            value = getattr(self, key)
            if value != default:
                allowed = f"{default} without profiles, which alone have a use for it"
                raise InputError(key, value, allowed)


def main(config: FitConfig, folder: Path) -> None:
    """Fit, write the parameter files and report.

    Raises:
        InputError: a key is wrong; with profiles see :func:`fit_profiles`.
    """
    began = time.perf_counter()
    config.check()
    if config.profiles is not None:
        options = ProfileFitOptions(
            profiles=config.profiles,
            schedule=config.schedule,
            kv_tokens=config.kv_tokens,
            ep=config.ep,
        )
        fit_profiles(options, config.hardware, folder)
        write_timing(folder, time.perf_counter() - began, {})
        return
    rows, kernels = shipped_measurements(), shipped_kernels()
    dies = {name: load_hardware(name) for name in (DONOR, STEPS_DIE)}
    columns = (SpinnerColumn(), TextColumn("fitting: {task.completed} evaluations"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("fit", total=None)
        family = fit_family(kernels, dies, lambda: progress.advance(task))
        shared = [
            row for row in kernels if row.hardware == STEPS_DIE and row.kind in SHARED_WITH_STEPS
        ]
        result = estimate(
            rows,
            [setting_of(row) for row in rows],
            family.dies[STEPS_DIE],
            shipped_priors(STEPS_DIE),
            shared,
            lambda: progress.advance(task),
        )
    fitted = {DONOR: family.dies[DONOR], STEPS_DIE: _with_evidence(result, rows, shared)}
    for name in SISTERS:
        fitted[name] = sister(load_hardware(name), fitted[STEPS_DIE])
    for name, die in fitted.items():
        write_text(folder / f"{name}.yaml", render_hardware(die, shipped_text(name)))
    write_result(folder, "calibration.fit", 0, fit_payload(rows, result, shared, family.kinds))
    write_timing(folder, time.perf_counter() - began, {})
    console = wide_console()
    print_kinds(console, family.kinds)
    print_steps(console, rows, result, shared)
    console.print(f"wrote {', '.join(f'{name}.yaml' for name in fitted)} into {folder}")


def _with_evidence(
    result: Estimate, rows: Sequence[Measurement], kernels: Sequence[KernelRow]
) -> Hardware:
    """The fitted hardware: every moved parameter with its interval and source.

    Also which of them move together, and the shapes that were fitted.
    """
    parameters = dict(result.hardware.parameters)
    for item in result.parameters:
        share = round(100 * item.learned)
        data = f"{len(rows)} published LongCat-Flash rows and {len(kernels)} kernel rows"
        parameters[item.name] = replace(
            parameters[item.name],
            value=digits(item.value),
            low=min(digits(item.low), digits(item.value)),
            high=max(digits(item.high), digits(item.value)),
            evidence="fitted",
            source=f"calibration.fit to {data}, "
            f"which removed {share}% of the prior's width; prior: {item.prior.source}",
        )
    # The steps moved what these kinds share, so their scatter is at least what remains now.
    for kind in sorted({row.kind for row in kernels}):
        errors = [
            row.predicted_us(result.hardware) / row.measured_us - 1
            for row in kernels
            if row.kind == kind
        ]
        old = parameters[f"spread_{kind}"]
        width = max(old.value, digits(spread_of(errors)[0]))
        parameters[old.name] = replace(old, value=width, low=width, high=width)
    for name, ends in (("spread_step_op", False), ("spread_step_tpot", True)):
        errors = [
            predicted / row.measured_us - 1
            for row, predicted in zip(rows, result.predicted_us, strict=True)
            if (row.kind == END_TO_END) is ends
        ]
        width = digits(quantile_80(errors))
        parameters[name] = replace(
            parameters[name],
            value=width,
            low=width,
            high=width,
            evidence="fitted",
            source=f"80% quantile of the log errors of {len(errors)} fitted rows (in sample)",
        )
    graphs = [
        build_step_graph(setting.schedule, setting.model, result.hardware, layers=2)
        for setting in {row.setting: setting_of(row) for row in rows}.values()
    ]
    specs = [op.spec for graph in graphs for op in graph.ops]
    return replace(
        result.hardware,
        parameters=parameters,
        correlations=apart([*result.hardware.correlations, result.correlation]),
        fitted_shapes=ranges_of(specs, result.hardware.fitted_shapes),
    )


if __name__ == "__main__":
    sys.exit(run("fit", FitConfig, main))
