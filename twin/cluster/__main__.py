"""``python -m twin.cluster``: simulate all dies of a schedule's deployment, coupled."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hardware_models.errors import InputError
from twin.choices import HardwareChoice
from twin.cli import run
from twin.cluster.export import check_dies, export_sample
from twin.cluster.options import ClusterOptions, ExpertLoad, Jitter, KvLengths, Placement
from twin.cluster.run import ClusterSimulation, Sample
from twin.cluster.summary import ClusterSummary, summarise
from twin.engine.compiled import warm_up
from twin.engine.options import EngineOptions, UnfinishedPrefetch
from twin.given import load_given
from twin.model_spec import ModelSpec
from twin.report.ascend import check_export
from twin.report.table import console
from twin.results import write_result, write_timing
from twin.schedule import Schedule

PACKAGES = ("numba",)
_WAITS_SHOWN = 8
_LAYERS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Configuration of the command; see ``--help``."""

    schedule: str
    hardware: HardwareChoice
    kv: KvLengths
    load: ExpertLoad
    placement: Placement
    jitter: Jitter
    layers: int | None
    seeds: int
    seed: int
    contention: bool
    unfinished_prefetch: UnfinishedPrefetch
    export: str | None
    export_dies: tuple[int, ...] | None

    def check(self) -> None:
        """Refuse numbers out of range, before anything is simulated.

        Raises:
            InputError: names the key.
        """
        if self.seeds < 1:
            raise InputError("seeds", self.seeds, "a whole number from 1")
        if self.seed < 0:
            raise InputError("seed", self.seed, "a whole number from 0")
        if self.export is not None:
            check_export(self.export)
        elif self.export_dies is not None:
            raise InputError("export_dies", list(self.export_dies), "null without export=")

    @property
    def options(self) -> ClusterOptions:
        """What makes dies differ."""
        return ClusterOptions(
            kv=self.kv, load=self.load, placement=self.placement, jitter=self.jitter
        )


def main(config: ClusterConfig, folder: Path) -> None:
    """Simulate, write and print.

    Raises:
        InputError: the schedule, the die, a file or a number of the configuration is wrong.
        InfeasibleError: the schedule does not fit in a die's memory; ``result.json`` says so too.
        DeadlockError: the step cannot finish.
    """
    began = time.perf_counter()
    config.check()
    given = load_given(config.schedule, config.hardware)
    _check_layers(config.layers, given.model)
    given.refuse_infeasible(folder, "twin.cluster", config.seed, PACKAGES)
    schedule = given.schedule
    simulation = ClusterSimulation(
        schedule, given.model, given.hardware, config.options, layers=config.layers
    )
    exported = check_dies(config.export_dies, simulation.cluster.dies)
    ready = time.perf_counter()
    summary = _simulated(config, simulation)
    if config.export is not None:
        _export(Path(config.export), config, simulation, exported)
    wall_s = time.perf_counter() - began
    payload = _payload(config, schedule, summary)
    write_result(folder, "twin.cluster", config.seed, payload, PACKAGES)
    rates = {
        "build_s": ready - began,
        "s_per_seed": (began + wall_s - ready) / config.seeds,
    }
    write_timing(folder, wall_s, rates)
    _print(config, schedule, summary)
    console().print(f"result.json in {folder}")
    if config.export is not None:
        console().print(
            f"profile of {len(exported)} of {summary.dies} simulated dies, seed {config.seed}, "
            f"in {config.export}"
        )


def _check_layers(layers: int | None, model: ModelSpec) -> None:
    if layers is not None and not 1 <= layers <= model.num_layers:
        allowed = f"1 to {model.num_layers}, those of {model.name}, or null for all"
        raise InputError("layers", layers, allowed)


def _options(config: ClusterConfig) -> EngineOptions:
    return EngineOptions(
        contention=config.contention, unfinished_prefetch=config.unfinished_prefetch
    )


def _simulated(config: ClusterConfig, simulation: ClusterSimulation) -> ClusterSummary:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("compiling the engine (once per machine)", total=config.seeds)
        warm_up()
        progress.update(task, description=f"simulating {simulation.cluster.dies} dies")

        def heard(sample: Sample) -> None:
            progress.update(task, advance=1)

        seeds = range(config.seed, config.seed + config.seeds)
        return summarise(simulation, seeds, _options(config), heard)


def _export(
    folder: Path, config: ClusterConfig, simulation: ClusterSimulation, dies: Sequence[int]
) -> None:
    """The step of the first seed as profiles, with a bar over the dies."""
    sample = simulation.run(config.seed, _options(config))
    about: dict[str, object] = {
        "schedule": Path(config.schedule).name,
        "hardware": simulation.cluster.hardware.name,
        "layers": config.layers,
        "seed": config.seed,
    }
    columns = (TextColumn("exporting dies"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("export", total=len(dies))
        export_sample(folder, simulation, sample, dies, about, lambda: progress.advance(task))


def _payload(
    config: ClusterConfig, schedule: Schedule, summary: ClusterSummary
) -> dict[str, object]:
    tokens = schedule.workload.tokens_per_step
    step = summary.step_us
    return {
        "name": Path(config.schedule).stem,
        "schedule": Path(config.schedule).name,
        "dies": summary.dies,
        "roles": {name: role.dies for name, role in schedule.deployment.roles.items()},
        "layers": summary.layers,
        "ops": summary.ops,
        "seeds": list(summary.seeds),
        "steps_ms": [us / 1e3 for us in summary.steps_us],
        "step_ms": {name: us / 1e3 for name, us in asdict(step).items()},
        "tpot_ms": {name: us / 1e3 / tokens for name, us in asdict(step).items()},
        "tokens_per_s_per_die": schedule.workload.global_batch
        * tokens
        / (step.mean / 1e6)
        / summary.dies,
        "ranks": {
            "tokens": list(summary.load.tokens),
            "active_experts": list(summary.load.active_experts),
            "imbalance": summary.load.imbalance,
            "kv_tokens": list(summary.kv_tokens),
        },
        "waits": [asdict(wait) for wait in summary.waits],
        "event_waits": [asdict(wait) for wait in summary.event_waits],
        "bounds": {role: dict(shares) for role, shares in summary.bounds.items()},
    }


def _print(config: ClusterConfig, schedule: Schedule, summary: ClusterSummary) -> None:
    out = console()
    step, load = summary.step_us, summary.load
    out.print(
        f"{Path(config.schedule).stem}: {summary.dies} dies, {summary.layers} layers, "
        f"{summary.ops:,} ops, {len(summary.seeds)} seeds"
    )
    out.print(
        f"step {step.mean / 1e3:.3f} ms on average; p50 {step.p50 / 1e3:.3f}, "
        f"p90 {step.p90 / 1e3:.3f}, p99 {step.p99 / 1e3:.3f} ms; "
        f"TPOT {step.mean / 1e3 / schedule.workload.tokens_per_step:.3f} ms"
    )
    out.print(
        f"tokens per expert rank and layer: {min(load.tokens):.1f} to {max(load.tokens):.1f} on "
        f"average, busiest rank {load.imbalance:.2f} x the mean of its layer; active experts "
        f"{min(load.active_experts):.2f} to {max(load.active_experts):.2f}; KV tokens of a "
        f"sequence on a die {min(summary.kv_tokens):,.0f} to {max(summary.kv_tokens):,.0f}"
    )
    out.print(_waits_table(summary))
    for wait in summary.event_waits[: 2 * _LAYERS_SHOWN]:
        out.print(
            f"layer {wait.layer}: {wait.role} dies wait {wait.wait_us:.1f} us for the other "
            f"role (longest {wait.longest_us:.1f} us)"
        )
    if len(summary.event_waits) > 2 * _LAYERS_SHOWN:
        out.print(f"... all {summary.layers} layers are in result.json")
    for role, shares in summary.bounds.items():
        text = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        out.print(f"main streams of {role} dies: {text}")


def _waits_table(summary: ClusterSummary) -> Table:
    table = Table(title="collectives: waiting for the last member, a die and step on average")
    columns = (
        "op", "wait us", "own work us", "longest wait us", "late because of", "slowest rank",
        "of the times",
    )  # fmt: skip
    for column in columns:
        left = column in ("op", "late because of", "slowest rank")
        table.add_column(column, justify="left" if left else "right")
    for wait in summary.waits[:_WAITS_SHOWN]:
        table.add_row(
            wait.op,
            f"{wait.wait_us:.1f}",
            f"{wait.work_us:.1f}",
            f"{wait.longest_us:.1f}",
            wait.waited_for,
            wait.slowest_rank,
            f"{wait.slowest_share:.0%}",
        )
    return table


if __name__ == "__main__":
    sys.exit(run("cluster", ClusterConfig, main))
