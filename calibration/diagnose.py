"""``python -m calibration.diagnose``: what a profile says, against the roofline and the twin.

Reads one file, one rank's folder or a cluster's folder, measured or exported by
``twin.simulate``; with ``against`` compares it to another profile, and fails where the step
became slower than allowed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from calibration.profiles.collectives import collectives_of
from calibration.profiles.delta import Delta, compare
from calibration.profiles.diagnosis import Diagnosis, diagnose
from calibration.profiles.diagnosis_tables import print_diagnosis
from calibration.profiles.event_waits import WaitCause, WaitTally
from calibration.profiles.findings import Planned, findings
from calibration.profiles.folder import TRACE, RankFiles, find_ranks
from calibration.profiles.mapping import Context
from calibration.profiles.overlay import write_overlay
from calibration.profiles.page import write_page
from calibration.profiles.payload import diagnosis_payload
from calibration.profiles.profile import RankProfile, read_rank
from calibration.profiles.shown import shown
from calibration.profiles.skipped import SkippedRows, Skips
from calibration.profiles.waits import read_trace
from hardware_models.errors import InputError, TwinError
from hardware_models.hardware import Hardware
from twin.choices import HardwareChoice
from twin.cli import run
from twin.models import load_model
from twin.results import write_result, write_timing
from twin.schedule_io import load_schedule

DEFAULT_DIE = "a3-752t"


class RegressionError(TwinError):
    """The step became slower than the comparison allows."""

    exit_code = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseConfig:
    """Configuration of the command; see ``--help``."""

    profile: str | None
    against: str | None
    hardware: HardwareChoice
    schedule: str | None
    kv_tokens: int
    ep: int
    regression: float

    def check(self) -> str:
        """Refuse numbers out of range; gives the profile.

        Raises:
            InputError: names the key.
        """
        if not self.profile:
            raise InputError("profile", self.profile, "a profile's file or folder")
        for key, value in (("kv_tokens", self.kv_tokens), ("ep", self.ep)):
            if value < 0:
                raise InputError(key, value, "a whole number from 0 (0: not known)")
        if not 0 <= self.regression < float("inf"):
            raise InputError("regression", self.regression, "a share from 0, such as 0.05")
        return self.profile


def main(config: DiagnoseConfig, folder: Path) -> None:
    """Diagnose, write and print.

    Raises:
        InputError: the profile or a number of the configuration is wrong.
        RegressionError: with ``against``, the step became slower than allowed.
    """
    began = time.perf_counter()
    profile = config.check()
    planned = _planned(config.schedule)
    scheduled = planned.schedule.deployment.hardware if planned else DEFAULT_DIE
    hardware = config.hardware.load(scheduled)
    files = find_ranks(Path(profile))
    base_files = find_ranks(Path(config.against)) if config.against else ()
    found, waits = _diagnosed(files, config, hardware)
    delta: Delta | None = None
    if base_files:
        base, _ = _diagnosed(base_files, config, hardware, traces=False)
        delta = compare(found, base)
        _overlay(folder, (files[0], found), (base_files[0], base))
    said = findings(found, hardware, planned)
    payload = diagnosis_payload(found, said, waits, delta)
    write_result(folder, "calibration.diagnose", 0, {"hardware": hardware.name, **payload})
    write_page(folder / "report.html", f"Diagnosis of {Path(profile).name}", payload)
    write_timing(folder, time.perf_counter() - began, {})
    print_diagnosis(payload, f"{shown(profile)} on {hardware.name}")
    also = ", overlay.json" if delta else ""
    Console().print(f"result.json, report.html{also} in {shown(str(folder), 200)}")
    if delta is not None and delta.change > config.regression:
        raise RegressionError(
            f"step: got {delta.change:+.1%} against {config.against}; "
            f"allowed: up to {config.regression:+.1%} (regression=)"
        )


def _planned(name: str | None) -> Planned | None:
    if name is None:
        return None
    schedule = load_schedule(name)
    return Planned(schedule, load_model(schedule.model))


def _diagnosed(
    files: Sequence[RankFiles],
    config: DiagnoseConfig,
    hardware: Hardware,
    *,
    traces: bool = True,
) -> tuple[Diagnosis, list[WaitCause]]:
    """All ranks one after the other, with a bar over the bytes of their traces."""
    collectives = collectives_of(files)
    context = Context(
        config.kv_tokens, config.ep, collectives.dies, collectives.moved_mb, collectives.own_us
    )
    causes = WaitTally(collectives.last_rank)
    skipped: list[SkippedRows] = []
    sizes = [path.stat().st_size for rank in files if traces and (path := rank.file(TRACE))]
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(),
               TimeRemainingColumn())  # fmt: skip
    progress = Progress(*columns, console=Console(stderr=True))
    task = progress.add_task("traces", total=sum(sizes))
    with ExitStack() as bar:

        def on_rank(rank: RankProfile) -> None:
            path = rank.files.file(TRACE) if traces else None
            if path is not None:
                if not progress.live.is_started:
                    # Once a kernel table was read: of what is none only the error is shown.
                    bar.enter_context(progress)
                skips = Skips()
                facts = read_trace(
                    path, rank.origin_us, skips, lambda size: progress.advance(task, size)
                )
                skipped.extend(skips.rows())
                causes.add(rank, facts.waits)

        found = diagnose(files, context, hardware, on_rank)
    return found.with_skipped(skipped), causes.rows()


def _overlay(folder: Path, *sides: tuple[RankFiles, Diagnosis]) -> None:
    titles = ["simulated" if found.simulated else "measured" for _, found in sides]
    if titles[0] == titles[1]:
        titles = [f"profile ({titles[0]})", f"against ({titles[1]})"]
    ranks = [read_rank(files) for files, _ in sides]
    write_overlay(folder / "overlay.json", list(zip(titles, ranks, strict=True)))


if __name__ == "__main__":
    sys.exit(run("diagnose", DiagnoseConfig, main))
