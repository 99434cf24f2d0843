"""``python -m benchmarks.engine``: how fast the engines are, on the same graphs in one run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES
from benchmarks.measure import (
    Engine,
    Evaluated,
    Measured,
    evaluate_many,
    in_own_process,
    run_case,
)
from hardware_models.errors import InputError
from twin.cli import run
from twin.engine.compiled import warm_up
from twin.models import load_model
from twin.report.table import console
from twin.results import write_result, write_timing

SEARCHED = "colocated"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Configuration of the command; see ``--help``."""

    cases: tuple[str, ...]
    layers: int | None
    repeats: int
    candidates: int
    plain: bool
    seed: int

    def check(self) -> None:
        """Refuse unknown cases and numbers out of range.

        Raises:
            InputError: names the key.
        """
        for name in self.cases:
            if name not in CASES:
                raise InputError("cases", name, f"some of {', '.join(CASES)}")
        for key, value in (("repeats", self.repeats), ("candidates", self.candidates)):
            if value < 1:
                raise InputError(key, value, "a whole number from 1")
        if self.layers is not None and self.layers < 1:
            raise InputError("layers", self.layers, "a whole number from 1, or null for all")


@dataclass(frozen=True, slots=True)
class Result:
    """One case on all engines; ``plain`` is there where it was run."""

    name: str
    layers: int
    simpy: Measured
    compiled: Measured
    plain: Measured | None

    @property
    def same(self) -> bool:
        """Whether all engines start and end every op at the same time, to the last bit."""
        others = [self.simpy] if self.plain is None else [self.simpy, self.plain]
        return all(other.answer == self.compiled.answer for other in others)

    def entry(self) -> dict[str, object]:
        """The case's row in ``result.json``."""
        compiled_s = self.compiled.seconds
        plain_s = None if self.plain is None else self.plain.seconds
        return {
            "name": self.name,
            "dies": self.compiled.dies,
            "layers": self.layers,
            "ops": self.compiled.ops,
            "simpy_s": self.simpy.seconds,
            "compiled_s": compiled_s,
            "ratio": self.simpy.seconds / compiled_s,
            "schedules_per_s": 1.0 / compiled_s,
            "peak_mb": self.compiled.peak_mb,
            "plain_s": plain_s,
            "plain_ratio": None if plain_s is None else plain_s / compiled_s,
            "events_per_s": self.compiled.events / compiled_s,
            "step_us": self.compiled.makespan_us,
            "same": self.same,
        }


def main(config: EngineConfig, folder: Path) -> None:
    """Measure, write and print.

    Raises:
        InputError: a key of the configuration is wrong.
    """
    config.check()
    began = time.perf_counter()
    status = Console(stderr=True).status("")
    with status:
        status.update("compiling the engine (once per machine)")
        compile_s = warm_up()
        results = [_measure(name, config, status.update) for name in config.cases]
        status.update(f"evaluating {config.candidates:,} candidates")
        evaluated: Evaluated = in_own_process(
            evaluate_many, SEARCHED, config.candidates, config.repeats, 25
        )
    entries = [result.entry() for result in results]
    steady = {
        "name": f"{SEARCHED}_steady",
        "candidates": evaluated.candidates,
        "seconds": evaluated.seconds,
        "schedules_per_s": evaluated.candidates / evaluated.seconds,
        "plan_s": evaluated.plan_s,
        "grid_s": evaluated.grid_s,
        "largest_difference": evaluated.largest_difference,
    }
    payload = {"cases": entries, "steady": steady}
    write_result(folder, "benchmarks.engine", config.seed, payload, ("numba",))
    write_timing(folder, time.perf_counter() - began, {"compile_s": compile_s})
    out = console()
    out.print(_table(results))
    for result in results:
        out.print(f"{result.name}: {_verdict(result)}")
    out.print(
        f"steady-state evaluation with other numbers each time: "
        f"{steady['schedules_per_s']:,.0f} schedules/s ({evaluated.candidates:,} in "
        f"{evaluated.seconds:.2f} s; the plan took {evaluated.plan_s * 1e3:.0f} ms and its knobs "
        f"{evaluated.grid_s * 1e3:.0f} ms); largest difference to a full run "
        f"{evaluated.largest_difference:.1e}"
    )
    out.print(f"compiled (or read from its cache) in {compile_s:.1f} s; result.json in {folder}")


def _measure(name: str, config: EngineConfig, say: Callable[[str], None]) -> Result:
    def measured(engine: Engine, repeats: int) -> Measured:
        say(f"{name}: {engine}")
        found: Measured = in_own_process(
            run_case, name, config.layers, engine, repeats, jit=engine != "plain"
        )
        return found

    schedule = CASES[name].load()
    layers = config.layers or load_model(schedule.model).num_layers
    return Result(
        name,
        layers,
        simpy=measured("simpy", min(config.repeats, 5)),
        compiled=measured("compiled", 20 * config.repeats),
        plain=measured("plain", min(config.repeats, 5)) if config.plain else None,
    )


def _verdict(result: Result) -> str:
    count = 2 if result.plain is None else 3
    if result.same:
        return (
            f"the same start and end of all {result.compiled.ops:,} ops from {count} engines, "
            f"to the last bit; step {result.compiled.makespan_us:,.3f} us"
        )
    return "DIFFERENT answers from the engines: this is a fault"


def _table(results: list[Result]) -> Table:
    table = Table(title="one step, one core: the fastest of some runs")
    columns = (
        "case", "dies", "layers", "ops", "simpy ms", "plain Python ms", "compiled ms",
        "simpy / compiled", "plain / compiled", "steps/s", "events/s", "peak MB",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    for result in results:
        compiled = result.compiled
        plain = result.plain
        table.add_row(
            result.name,
            str(compiled.dies),
            str(result.layers),
            f"{compiled.ops:,}",
            f"{result.simpy.seconds * 1e3:.1f}",
            "-" if plain is None else f"{plain.seconds * 1e3:.1f}",
            f"{compiled.seconds * 1e3:.3f}",
            f"{result.simpy.seconds / compiled.seconds:.0f}",
            "-" if plain is None else f"{plain.seconds / compiled.seconds:.0f}",
            f"{1.0 / compiled.seconds:,.0f}",
            f"{compiled.events / compiled.seconds:,.0f}",
            f"{compiled.peak_mb:.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(run("benchmark_engine", EngineConfig, main))
