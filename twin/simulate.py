"""``python -m twin.simulate``: simulate one schedule from its file alone."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hardware_models.errors import InputError
from twin.choices import HardwareChoice
from twin.cli import run
from twin.engine.observer import Counters
from twin.engine.options import EngineOptions, UnfinishedPrefetch
from twin.engine.reference import simulate
from twin.entry import entry_of
from twin.evaluate import Evaluation, evaluate, with_interval
from twin.evidence import with_evidence
from twin.given import Given, load_given
from twin.report.ascend import check_export, write_ascend
from twin.report.html import write_simulation_report
from twin.report.table import clipped_text, console, entries_table, kinds_table
from twin.report.trace import write_trace
from twin.results import write_result, write_timing
from twin.sealed import SEALED, check_seal, write_sealed
from twin.uncertainty import draw_hardware, latency_spread


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateConfig:
    """Configuration of the command; see ``--help``."""

    schedule: str
    hardware: HardwareChoice
    contention: bool
    unfinished_prefetch: UnfinishedPrefetch
    draws: int
    seed: int
    export: str | None
    seal: bool

    def check(self) -> None:
        """Refuse numbers out of range, before anything is simulated.

        Raises:
            InputError: names the key.
        """
        for key, value in (("draws", self.draws), ("seed", self.seed)):
            if value < 0:
                raise InputError(key, value, "a whole number from 0")
        if self.export is not None:
            check_export(self.export)


def main(config: SimulateConfig, folder: Path) -> None:
    """Simulate, write and print.

    Raises:
        InputError: the schedule, the die or a number of the configuration is wrong.
        InfeasibleError: the schedule does not fit in a die's memory; ``result.json`` says so too.
    """
    began = time.perf_counter()
    config.check()
    if config.seal:
        check_seal(folder, config.draws)
    given = load_given(config.schedule, config.hardware)
    given.refuse_infeasible(folder, "twin.simulate", config.seed)
    options = EngineOptions(
        contention=config.contention, unfinished_prefetch=config.unfinished_prefetch
    )
    result = _evaluated(config, given, options)
    entry = entry_of(Path(config.schedule).stem, result, Path(config.schedule).name)
    graph, timeline = result.graph, result.timeline
    ops = [
        {
            "name": op.name,
            "kind": op.kind,
            "die": op.die,
            "stream": op.stream,
            "start_us": record.start_us,
            "end_us": record.end_us,
            "wait_us": record.wait_us,
            "bound": record.bound,
        }
        for op, record in zip(graph.ops, timeline.records, strict=True)
    ]
    clipped = [
        {"weight": weight, "asked_bytes": asked, "given_bytes": given}
        for weight, asked, given in graph.clipped
    ]
    payload = {**entry, "clipped_prefetches": clipped, "ops": ops}
    write_result(folder, "twin.simulate", config.seed, payload)
    counters = Counters()
    simulate(graph, options, counters)
    write_trace(folder / "trace.json", graph, timeline, counters)
    write_simulation_report(folder / "report.html", entry, result)
    if config.export is not None:
        about: dict[str, object] = {"schedule": entry["schedule"], "hardware": given.hardware.name}
        write_ascend(Path(config.export), graph, timeline, about)
    write_timing(folder, time.perf_counter() - began, {})
    out = console()
    title = f"{given.schedule.model} on {given.hardware.name}: {config.schedule}"
    out.print(entries_table(title, [entry]))
    out.print(kinds_table({k: us / 1e3 for k, us in result.time_by_kind.items()}))
    if clipped:
        out.print(clipped_text(graph.clipped))
    out.print(f"result.json, trace.json, report.html in {folder}")
    if config.seal:
        made_by = _made_by(config)
        sealed_hash = write_sealed(folder / SEALED, result, given.hardware, made_by)
        out.print(f"sealed in {folder / SEALED}: hash {sealed_hash}")
    if config.export is not None:
        out.print(f"profile of {len(graph.dies)} simulated dies in {config.export}")


def _made_by(config: SimulateConfig) -> dict[str, object]:
    return {
        "command": "twin.simulate",
        "schedule": config.schedule,
        "contention": config.contention,
        "unfinished_prefetch": config.unfinished_prefetch,
        "draws": config.draws,
        "seed": config.seed,
    }


def _evaluated(config: SimulateConfig, given: Given, options: EngineOptions) -> Evaluation:
    schedule, model, hardware = given.schedule, given.model, given.hardware
    plain = evaluate(schedule, model, hardware, options=options)
    result = with_evidence(plain, model, hardware, options)
    if not config.draws:
        return result
    variants = draw_hardware(hardware, config.draws, config.seed)
    return with_interval(result, latency_spread(schedule, model, variants, options), hardware)


if __name__ == "__main__":
    sys.exit(run("simulate", SimulateConfig, main))
