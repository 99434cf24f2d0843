"""``python -m twin.plan``: capacity, MTP's break-even, AFD or not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hardware_models.errors import InfeasibleError
from twin.cli import run
from twin.plan.afd_or_not import run_afd_or_not
from twin.plan.capacity import run_capacity
from twin.plan.config import PlanConfig, Scenario
from twin.plan.mtp import run_mtp
from twin.plan.outcome import Outcome
from twin.plan.page import write_plan_report
from twin.plan.setting import Setting, setting_of
from twin.report.table import console
from twin.results import write_result, write_timing
from twin.search.pool import Processes, available_cpus

PACKAGES = ("numba",)
SCENARIOS: Mapping[Scenario, Callable[[Setting], Outcome]] = {
    "capacity": run_capacity,
    "mtp": run_mtp,
    "afd_or_not": run_afd_or_not,
}


def main(config: PlanConfig, folder: Path) -> None:
    """Answer, write and print.

    Raises:
        InputError: wrong configuration.
        InfeasibleError: no part of the question has an answer: names the constraint.
    """
    began = time.perf_counter()
    with Processes(config.workers or available_cpus()) as workers:
        setting = setting_of(config, folder, workers)
        outcome = SCENARIOS[config.scenario](setting)
    spaces = {layout: dict(space.levels) for layout, space in setting.spaces.items()}
    payload = {"scenario": config.scenario, "spaces": spaces, **outcome.payload}
    write_result(folder, "twin.plan", config.seed, payload, PACKAGES)
    out = console()
    out.print(outcome.table)
    if outcome.nothing is not None:
        raise InfeasibleError(f"nothing feasible; the nearest misses by: {outcome.nothing}")
    subtitle = f"{setting.model.name} on {setting.hardware.name}, {config.draws} draws"
    title = f"Plan: {config.scenario.replace('_', ' ')}"
    write_plan_report(folder / "report.html", title, subtitle, outcome)
    wall_s = time.perf_counter() - began
    write_timing(folder, wall_s, {})
    for line in outcome.lines:
        out.print(line)
    out.print(f"{wall_s:.0f} s; result.json, report.html, schedules/ in {folder}")


if __name__ == "__main__":
    sys.exit(run("plan", PlanConfig, main))
