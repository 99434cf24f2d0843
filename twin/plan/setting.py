"""What every scenario starts from: the model, the die, and a space of schedules by layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.entry import entry_of
from twin.evaluate import Evaluation, Spread, evaluate, latencies, with_interval
from twin.evidence import with_evidence
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.plan.config import Layout, PlanConfig, of_space
from twin.plan.inner import Best
from twin.results import write_text
from twin.schedule import Schedule
from twin.schedule_io import dump_schedule
from twin.search.base import base_schedule, check_fixed
from twin.search.pool import Workers
from twin.search.space import Space
from twin.uncertainty import Array, draw_hardware, quantiles

Item = TypeVar("Item")
Result = TypeVar("Result")
Entry = dict[str, object]


@dataclass(frozen=True)
class Setting:
    """One plan's model, die and spaces; schedules are written below ``folder``."""

    config: PlanConfig
    model: ModelSpec
    hardware: Hardware
    spaces: Mapping[Layout, Space]
    folder: Path
    workers: Workers

    @cached_property
    def _draws(self) -> _Draws:
        variants = draw_hardware(self.hardware, self.config.draws, self.config.seed)
        return _Draws(self.model, self.hardware, tuple(variants))

    def map(self, what: str, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """``work`` of every item in the plan's processes, with a progress bar."""
        results: Iterable[Result] = self.workers.map(work, items)
        return list(track(results, what, len(items), console=Console(stderr=True)))

    def confirmed(self, found: Mapping[str, Best]) -> dict[str, Confirmed]:
        """Every schedule by name, confirmed and drawn; each is written to a file."""
        schedules = [best.schedule for best in found.values()]
        results = self.map("confirming", self._draws.of, schedules)
        confirmed: dict[str, Confirmed] = {}
        for (name, best), (result, latency_us) in zip(found.items(), results, strict=True):
            path = f"schedules/{name}.yaml"
            write_text(self.folder / path, dump_schedule(best.schedule))
            entry = {**entry_of(name, result, path), "knobs": dict(best.choice)}
            confirmed[name] = Confirmed(entry, latency_us)
        return confirmed


@dataclass(frozen=True)
class Confirmed:
    """The entry of a schedule; its latency on the die itself, then on each variant of it."""

    entry: Entry
    latency_us: Array


@dataclass(frozen=True)
class _Draws:
    """A die and the variants of it that stand for what is not known: the same for a whole plan."""

    model: ModelSpec
    hardware: Hardware
    variants: tuple[Hardware, ...]

    def of(self, schedule: Schedule) -> tuple[Evaluation, Array]:
        """The full step with its interval; the latency on the die itself, then on each variant."""
        plain = evaluate(schedule, self.model, self.hardware)
        result = with_evidence(plain, self.model, self.hardware)
        drawn = np.array(latencies(schedule, self.model, [self.hardware, *self.variants]))
        return with_interval(result, Spread(*quantiles(drawn[1:])), self.hardware), drawn


def setting_of(config: PlanConfig, folder: Path, workers: Workers) -> Setting:
    """Load what the configuration names.

    Raises:
        InputError: a wrong key, workload or knob; or the layouts' bases name two dies.
    """
    config.check()
    model = load_model(config.model)
    bases = {layout: base_schedule(config.search(layout), layout) for layout in config.layouts}
    dies = sorted({base.deployment.hardware for base in bases.values()})
    if len(dies) != 1:
        raise InputError("hardware.die", config.hardware.die, f"one die: the bases name {dies}")
    hardware = config.hardware.load(dies[0])
    spaces = {}
    for layout, base in bases.items():
        check_fixed(base, model, hardware)
        space = Space(
            base, model, hardware, config.spaces[layout].knobs, config.deployment.dies or ()
        )
        try:
            space.check()
        except InputError as error:
            raise of_space(error, layout) from None
        spaces[layout] = space
    return Setting(config, model, hardware, spaces, folder, workers)
