"""``python -m twin.simulate``: simulate one schedule from its file alone."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hardware_models.errors import InfeasibleError, InputError
from hardware_models.hardware import Hardware
from twin.choices import HardwareChoice
from twin.cli import run
from twin.engine.observer import Counters
from twin.engine.options import EngineOptions, UnfinishedPrefetch
from twin.engine.reference import simulate
from twin.entry import entry_of
from twin.evaluate import Evaluation, evaluate, with_interval
from twin.evidence import with_evidence
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.report.ascend import check_export, write_ascend
from twin.report.html import write_simulation_report
from twin.report.table import clipped_text, console, entries_table, kinds_table
from twin.report.trace import write_trace
from twin.results import write_result, write_timing
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.feasible import rejection
from twin.uncertainty import draw_hardware, latency_spread
from twin.validate import validate_schedule


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
    schedule = load_schedule(config.schedule)
    model = load_model(schedule.model)
    hardware = config.hardware.load(schedule.deployment.hardware)
    # The file was checked against its own die; this one may be another.
    validate_schedule(schedule, model, hardware)
    reason = rejection(schedule, model, hardware)
    if reason is not None:
        refused = {"infeasible": {reason.reason: 1}, "detail": reason.detail}
        write_result(folder, "twin.simulate", config.seed, refused)
        raise InfeasibleError(f"{config.schedule}: {reason.detail}")
    options = EngineOptions(
        contention=config.contention, unfinished_prefetch=config.unfinished_prefetch
    )
    result = _evaluated(config, schedule, model, hardware, options)
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
        about: dict[str, object] = {"schedule": entry["schedule"], "hardware": hardware.name}
        write_ascend(Path(config.export), graph, timeline, about)
    write_timing(folder, time.perf_counter() - began, {})
    out = console()
    out.print(entries_table(f"{schedule.model} on {hardware.name}: {config.schedule}", [entry]))
    out.print(kinds_table({k: us / 1e3 for k, us in result.time_by_kind.items()}))
    if clipped:
        out.print(clipped_text(graph.clipped))
    out.print(f"result.json, trace.json, report.html in {folder}")
    if config.export is not None:
        out.print(f"profile of {len(graph.dies)} simulated dies in {config.export}")


def _evaluated(
    config: SimulateConfig,
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    options: EngineOptions,
) -> Evaluation:
    plain = evaluate(schedule, model, hardware, options=options)
    result = with_evidence(plain, model, hardware, options)
    if not config.draws:
        return result
    variants = draw_hardware(hardware, config.draws, config.seed)
    return with_interval(result, latency_spread(schedule, model, variants, options))


if __name__ == "__main__":
    sys.exit(run("simulate", SimulateConfig, main))
