"""`python -m runtime_npu.doctor`: what this machine lacks for a run on NPUs.

Exit code 0: nothing is missing.  Exit code 4: something is; every fault comes with its fix.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hardware_models.errors import MachineError
from hardware_models.hardware import load_hardware
from runtime_npu.machine.finding import Finding
from runtime_npu.machine.launch import PROBE, all_findings
from twin.cli import run as run_command
from twin.models import load_model
from twin.results import write_result, write_timing
from twin.schedule_io import load_schedule

COMMAND = "runtime_npu.doctor"


FILE_WIDTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What the doctor takes; see ``--help``."""

    schedule: str
    seed: int = 0


def examine(
    options: DoctorOptions, environment: Mapping[str, str], root: Path, probe: Sequence[str]
) -> tuple[Finding, ...]:
    """All findings, for the machine whose file system begins at ``root``.

    Raises:
        InputError: the schedule cannot be read.
    """
    schedule = load_schedule(options.schedule)
    model = load_model(schedule.model)
    hardware = load_hardware(schedule.deployment.hardware)
    return all_findings(schedule, model, hardware, environment, root, probe, is_run=False)


def main(options: DoctorOptions, folder: Path) -> None:
    """Examine this machine, print the findings and write the result files.

    Raises:
        MachineError: there is no NPU, or something else is missing.
    """
    start = time.perf_counter()
    findings = examine(options, os.environ, Path("/"), PROBE)
    print_findings(findings)
    payload = {"findings": [dataclasses.asdict(finding) for finding in findings]}
    write_result(folder, COMMAND, options.seed, payload)
    write_timing(folder, time.perf_counter() - start, {})
    print(f"wrote {folder}/result.json and timing.json")
    faults = [finding.check for finding in findings if finding.status == "fault"]
    if "devices" in faults:
        raise MachineError("this machine has no NPU that torch_npu can use; see the table above")
    if faults:
        raise MachineError(f"to fix before a run: {', '.join(faults)}; see the table above")


def print_findings(findings: Sequence[Finding]) -> None:
    """A table, a row a check."""
    table = Table(title="Doctor")
    for column in ("check", "status"):
        table.add_column(column, no_wrap=True)
    for column in ("found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, finding.status, finding.found, finding.fix)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH  # room for commands that somebody will copy
    console.print(table)


if __name__ == "__main__":
    sys.exit(run_command("doctor", DoctorOptions, main))
