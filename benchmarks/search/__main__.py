"""``python -m benchmarks.search``: how fast a search is, on one process and on several."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from hardware_models.errors import InputError
from twin.cli import run
from twin.engine.compiled import warm_up
from twin.report.table import console
from twin.results import write_result, write_timing
from twin.search.answer import answer
from twin.search.base import searched_space
from twin.search.config import SearchConfig
from twin.search.explorer import Explorer
from twin.search.pool import Processes, prepare
from twin.search.space import Space
from twin.search.sweep import Sweep, sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkConfig(SearchConfig):
    """A search, and the numbers of processes that it is run on; see ``--help``."""

    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """One sweep of the space: seconds, the start of the processes (forks of a server) included."""

    processes: int
    seconds: float
    sweep: Sweep


def main(config: BenchmarkConfig, folder: Path) -> None:
    """Measure, write and print.

    Raises:
        InputError: a key of the configuration is wrong.
    """
    if not config.processes or min(config.processes) < 1:
        raise InputError("processes", list(config.processes), "whole numbers from 1")
    prepare(max(config.processes))
    space = searched_space(config)
    began = time.perf_counter()
    compile_s = warm_up()
    runs = [_timed(config, space, processes) for processes in config.processes]
    first = runs[0]
    same = all(timed.sweep == first.sweep for timed in runs)
    ties = answer(space, first.sweep.points, config.tie_tolerance).ties
    payload = {
        "scenario": config.scenario,
        "candidates": space.size,
        "feasible": first.sweep.feasible,
        "simulated": first.sweep.simulated,
        "pruning_factor": first.sweep.feasible / max(first.sweep.simulated, 1),
        "best": ties[0] if ties else None,
        "same": same,
        "runs": [
            {
                "processes": timed.processes,
                "seconds": timed.seconds,
                "ratio": first.seconds / timed.seconds,
                "simulated_per_s": timed.sweep.simulated / timed.seconds,
                "decided_per_s": space.size / timed.seconds,
            }
            for timed in runs
        ],
    }
    write_result(folder, "benchmarks.search", config.seed, payload, ("numba",))
    write_timing(folder, time.perf_counter() - began, {"compile_s": compile_s})
    out = console()
    out.print(_table(config, space, runs))
    out.print("the same answer on all" if same else "DIFFERENT answers: this is a fault")
    out.print(f"compiled (or read from its cache) in {compile_s:.1f} s; result.json in {folder}")


def _timed(config: SearchConfig, space: Space, processes: int) -> Timed:
    # A fingerprint of its own: nothing that an earlier run built in this process is used again.
    explorer = Explorer(space, config.tie_tolerance)
    explorer.forget()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Processes(processes) as workers:
        swept = sweep(explorer, workers, Path(folder), config.budget)
        seconds = time.perf_counter() - began
    return Timed(processes, seconds, swept)


def _table(config: SearchConfig, space: Space, runs: list[Timed]) -> Table:
    found = runs[0].sweep
    table = Table(
        title=f"{config.scenario}: {space.size:,} candidates, {found.feasible:,} feasible, "
        f"{found.simulated:,} simulated (pruning factor "
        f"{found.feasible / max(found.simulated, 1):.1f})"
    )
    for column in ("processes", "seconds", "ratio", "simulated/s", "decided/s"):
        table.add_column(column, justify="right")
    for timed in runs:
        table.add_row(
            str(timed.processes),
            f"{timed.seconds:.1f}",
            f"{runs[0].seconds / timed.seconds:.2f}",
            f"{found.simulated / timed.seconds:,.0f}",
            f"{space.size / timed.seconds:,.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(run("benchmark_search", BenchmarkConfig, main))
