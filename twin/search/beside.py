"""The baselines of one search: with its workload, on its dies, and why one is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hardware_models.errors import InputError
from twin.schedule import Schedule
from twin.search.base import base_schedule
from twin.search.baselines import (
    CLOSED_FORM,
    baseline_schedules,
    closed_form_baseline,
    prefill_baselines,
)
from twin.search.changes import with_dies
from twin.search.config import Kind, SearchConfig
from twin.search.feasible import rejection
from twin.search.space import Space


@dataclass(frozen=True, slots=True)
class Baseline:
    """A schedule to stand beside the answer, or a text that says why there is none.

    ``reasoning`` is that of a rule which made it, else ``None``.
    """

    name: str
    schedule: Schedule | str
    reasoning: str | None = None


def baselines_of(config: SearchConfig, space: Space) -> list[Baseline]:
    """The baselines of a search, those first that it lists first."""
    total = space.dies[0] if space.dies else space.base.deployment.total_dies
    made = [
        Baseline(name, _or_reason(item, space))
        for name, item in _made(config, space, total).items()
    ]
    return [*made, *([_closed_form(space, total)] if config.scenario == "afd" else [])]


def _made(config: SearchConfig, space: Space, total: int) -> Mapping[str, Schedule | str]:
    if config.scenario == "prefill":
        return prefill_baselines(with_dies(space.base, total))

    def counterpart(kind: Kind) -> Schedule | str:
        if kind == config.scenario:
            return space.base
        try:
            recipe = replace(base_schedule(config, kind), workload=space.base.workload)
            return with_dies(recipe, total)
        except InputError as error:
            return str(error)

    return baseline_schedules(
        space.base, counterpart("colocated"), counterpart("afd"), space.hardware
    )


def _closed_form(space: Space, total: int) -> Baseline:
    try:
        base = with_dies(space.base, total)
        name, schedule, reasoning = closed_form_baseline(base, space.model, space.hardware)
    except InputError as error:
        return Baseline(CLOSED_FORM, str(error))
    return Baseline(name, schedule, reasoning)


def _or_reason(item: Schedule | str, space: Space) -> Schedule | str:
    if isinstance(item, str):
        return item
    reason = rejection(item, space.model, space.hardware)
    return item if reason is None else reason.detail
