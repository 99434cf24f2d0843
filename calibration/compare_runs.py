"""``python -m calibration.compare profiles=RUNS``: steps that ran on this machine, and predicted.

Each run folder says what ran and how long its steps took; the twin simulates the same schedule
on the die given (a file that ``calibration.fit`` wrote from other runs).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from calibration.profiles.measured import MeasuredRun, read_runs
from calibration.profiles.shown import shown
from hardware_models.hardware import Hardware
from twin.choices import HardwareChoice
from twin.evaluate import latencies
from twin.models import load_model
from twin.report.table import console
from twin.results import write_result
from twin.uncertainty import COVERAGE, draw_hardware

_QUIET = 0.9
"""Below this share of its time on a core, a run was measured beside others."""

_TIE = 0.05
"""Runs whose measured speeds differ by less than this share have no order to get right."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A run's step (see :class:`MeasuredRun`) beside the simulated one and its 80% interval."""

    run: str
    global_batch: int
    kv_tokens: int
    dies: int
    measured_us: float
    all_steps_us: float
    running_share: float
    simulated_us: float
    low_us: float
    high_us: float

    @property
    def error(self) -> float:
        """Simulated over measured, less one."""
        return self.simulated_us / self.measured_us - 1


@dataclass(frozen=True, slots=True)
class Ranking:
    """Pairs of runs by tokens per second and die: how many have an order, how many the right one.

    ``best`` says whether the fastest run is also predicted to be the fastest.
    """

    pairs: int
    right: int
    best: bool


def compare_runs(
    path: Path, choice: HardwareChoice, draws: int, seed: int, folder: Path
) -> tuple[list[RunComparison], Ranking]:
    """Compare all runs below a path, print them and write result.json.

    Raises:
        InputError: no run is there, or one is broken or cannot be laid out on the die.
    """
    found = []
    for run in read_runs(path):
        die = choice.load(run.schedule.deployment.hardware)
        found.append(_compared(run, die, draw_hardware(die, draws, seed) if draws else []))
    order = ranking(found)
    error = statistics.median(abs(row.error) for row in found)
    payload = {
        "rows": [asdict(row) | {"error": row.error} for row in found],
        "median_abs_error": error,
        "ranking": asdict(order),
    }
    write_result(folder, "calibration.compare", seed, payload)
    _print(found, order, error)
    return found, order


def _compared(run: MeasuredRun, die: Hardware, variants: Sequence[Hardware]) -> RunComparison:
    schedule = run.schedule
    first, *others = latencies(schedule, load_model(schedule.model), [die, *variants])
    ends = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
    low, high = np.quantile(others or [first], ends).tolist()
    return RunComparison(
        run=run.name,
        global_batch=schedule.workload.global_batch,
        kv_tokens=schedule.workload.kv_tokens,
        dies=schedule.deployment.total_dies,
        measured_us=run.step_us,
        all_steps_us=run.all_steps_us,
        running_share=run.running_share,
        simulated_us=first * schedule.workload.tokens_per_step,
        low_us=min(first, low) * schedule.workload.tokens_per_step,
        high_us=max(first, high) * schedule.workload.tokens_per_step,
    )


def ranking(rows: Sequence[RunComparison]) -> Ranking:
    """How well the prediction orders runs by sequences a second and die."""

    def speeds(row: RunComparison) -> tuple[float, float]:
        work = row.global_batch / row.dies
        return work / row.measured_us, work / row.simulated_us

    known = [speeds(row) for row in rows]
    ordered = [
        (one, other)
        for one, other in itertools.combinations(known, 2)
        if abs(one[0] / other[0] - 1) > _TIE
    ]
    right = sum((a[0] > b[0]) == (a[1] > b[1]) for a, b in ordered)
    fastest = max(known, key=lambda pair: pair[0])
    return Ranking(len(ordered), right, fastest == max(known, key=lambda pair: pair[1]))


def _print(rows: Sequence[RunComparison], order: Ranking, error: float) -> None:
    table = Table(title="Wall times of steps measured on this machine, and simulated (us)")
    for name in ("run", "batch", "KV", "dies", "all steps", "least disturbed", "simulated", "80%",
                 "error", "running"):  # fmt: skip
        table.add_column(name, justify="left" if name == "run" else "right")
    for row in rows:
        numbers = (row.global_batch, row.kv_tokens, row.dies)
        times = (row.all_steps_us, row.measured_us, row.simulated_us)
        interval = f"{row.low_us:.0f} .. {row.high_us:.0f}"
        cells = (*map(str, numbers), *(f"{us:.0f}" for us in times), interval)
        table.add_row(shown(row.run), *cells, f"{row.error:+.1%}", f"{row.running_share:.0%}")
    out = console()
    out.print(table)
    out.print(f"median error {error:.1%} of {len(rows)} runs (measured: steps least disturbed)")
    if busy := sum(row.running_share < _QUIET for row in rows):
        out.print(
            f"{busy} of {len(rows)} runs did not have the machine for themselves (running: the "
            "share of the time outside of exchanges in which a rank's thread ran): measure "
            "them again when it is quiet"
        )
    best = "also" if order.best else "not"
    out.print(
        f"order of schedules by sequences a second and die: right in {order.right} of "
        f"{order.pairs} pairs that differ by more than {_TIE:.0%}; the fastest is {best} "
        "predicted to be"
    )
