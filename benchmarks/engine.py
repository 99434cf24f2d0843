"""``python -m benchmarks.engine``: how fast the engines are, on the same graphs in one run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, CLUSTERS, SIMPY_DIES
from benchmarks.measure import (
    Engine,
    Evaluated,
    Measured,
    evaluate_many,
    on_one_core,
    run_case,
    run_cluster,
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
    clusters: tuple[str, ...]
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
        for key, names, known in (
            ("cases", self.cases, tuple(CASES)),
            ("clusters", self.clusters, tuple(CLUSTERS)),
        ):
            for name in names:
                if name not in known:
                    raise InputError(key, name, f"some of {', '.join(known)}")
        for key, value in (("repeats", self.repeats), ("candidates", self.candidates)):
            if value < 1:
                raise InputError(key, value, "a whole number from 1")
        if self.layers is not None and self.layers < 1:
            raise InputError("layers", self.layers, "a whole number from 1, or null for all")


@dataclass(frozen=True, slots=True)
class Result:
    """One case on all engines that it was run on."""

    name: str
    layers: int
    compiled: Measured
    simpy: Measured | None
    plain: Measured | None

    @property
    def engines(self) -> int:
        """How many engines ran it."""
        return 1 + (self.simpy is not None) + (self.plain is not None)

    @property
    def same(self) -> bool | None:
        """Whether all engines start and end every op at the same time, to the last bit.

        ``None`` where there is only one engine's answer.
        """
        others = [other for other in (self.simpy, self.plain) if other is not None]
        return all(other.answer == self.compiled.answer for other in others) if others else None

    def times_slower(self, other: Measured | None) -> float | None:
        """How many times the compiled engine's time another engine took."""
        return None if other is None else other.seconds / self.compiled.seconds

    def entry(self) -> dict[str, object]:
        """The case's row in ``result.json``."""
        compiled_s = self.compiled.seconds
        return {
            "name": self.name,
            "dies": self.compiled.dies,
            "layers": self.layers,
            "ops": self.compiled.ops,
            "simpy_s": None if self.simpy is None else self.simpy.seconds,
            "compiled_s": compiled_s,
            "ratio": self.times_slower(self.simpy),
            "schedules_per_s": 1.0 / compiled_s,
            "peak_mb": self.compiled.peak_mb,
            "plain_s": None if self.plain is None else self.plain.seconds,
            "plain_ratio": self.times_slower(self.plain),
            "events_per_s": self.compiled.events / compiled_s,
            "ms_per_die": compiled_s * 1e3 / self.compiled.dies,
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
        results += [_measure_cluster(name, config, status.update) for name in config.clusters]
        status.update(f"evaluating {config.candidates:,} candidates")
        evaluated: Evaluated = on_one_core(
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
        found: Measured = on_one_core(
            run_case, name, config.layers, engine, repeats, jit=engine != "plain"
        )
        return found

    few = min(config.repeats, 5)
    return Result(
        name,
        config.layers or load_model(CASES[name].load().model).num_layers,
        compiled=measured("compiled", 20 * config.repeats),
        simpy=measured("simpy", few),
        plain=measured("plain", few) if config.plain else None,
    )


def _measure_cluster(name: str, config: EngineConfig, say: Callable[[str], None]) -> Result:
    def measured(engine: Engine) -> Measured:
        say(f"{name}: {engine}")
        found: Measured = on_one_core(run_cluster, name, config.layers, engine, config.repeats)
        return found

    case = CLUSTERS[name]
    return Result(
        name,
        config.layers or load_model(case.load().model).num_layers,
        compiled=measured("compiled"),
        simpy=measured("simpy") if case.dies <= SIMPY_DIES else None,
        plain=None,
    )


def _verdict(result: Result) -> str:
    if result.same is None:
        return f"step {result.compiled.makespan_us:,.3f} us (too large for the other engines)"
    if result.same:
        return (
            f"the same start and end of all {result.compiled.ops:,} ops from {result.engines} "
            f"engines, to the last bit; step {result.compiled.makespan_us:,.3f} us"
        )
    return "DIFFERENT answers from the engines: this is a fault"


def _table(results: list[Result]) -> Table:
    table = Table(title="one step, one core: the fastest of some runs")
    columns = (
        "case", "dies", "layers", "ops", "simpy ms", "plain Python ms", "compiled ms",
        "simpy / compiled", "plain / compiled", "steps/s", "events/s", "ms/die", "peak MB",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    for result in results:
        compiled = result.compiled
        table.add_row(
            result.name,
            str(compiled.dies),
            str(result.layers),
            f"{compiled.ops:,}",
            _milliseconds(result.simpy),
            _milliseconds(result.plain),
            f"{compiled.seconds * 1e3:.3f}",
            _number(result.times_slower(result.simpy)),
            _number(result.times_slower(result.plain)),
            f"{1.0 / compiled.seconds:,.0f}",
            f"{compiled.events / compiled.seconds:,.0f}",
            f"{compiled.seconds * 1e3 / compiled.dies:.3f}",
            f"{compiled.peak_mb:.0f}",
        )
    return table


def _milliseconds(measured: Measured | None) -> str:
    return "-" if measured is None else f"{measured.seconds * 1e3:,.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(run("benchmark_engine", EngineConfig, main))
