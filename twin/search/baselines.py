"""Baselines: schedules that always stand beside what a search found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.model_spec import ModelSpec
from twin.schedule import CoreLimit, Schedule, Stage
from twin.search.changes import with_core_split, with_micro_batches, with_ratio, with_sizes
from twin.search.closed_form import closed_form, layer_times
from twin.search.feasible import rejection

SERIAL = "serial, all cores"
RECIPE = "recipe c16v32 + c8v16"
HALVES = "c12v24 twice"
NO_PREFETCH = "no prefetch"
AFD_1_1 = "AFD 1:1"
CLOSED_FORM = "closed-form A:F"
BASE = "base schedule"
ONE_CHUNK = "one chunk, one micro-batch"
NO_TP = "no tensor parallelism"


def serial(schedule: Schedule) -> Schedule:
    """Everything on one stream with all cores; prefetches stay."""
    name = "serial"
    scopes = (name,) if schedule.super_kernel else ()
    stage = Stage(name=name, streams={"main": CoreLimit()})
    return replace(schedule, stages=(stage,), super_kernel=scopes)


def baseline_schedules(
    searched: Schedule, colocated: Schedule | str, afd: Schedule | str, hardware: Hardware
) -> dict[str, Schedule | str]:
    """The baselines by name: a schedule, or why there is none.

    ``searched`` is the scenario's base; ``colocated`` and ``afd`` are the recipe's
    schedules with the same workload on as many dies, or why they cannot be.
    """

    def of(make: Callable[[Schedule], Schedule], base: Schedule | str) -> Schedule | str:
        if isinstance(base, str):
            return base
        try:
            return make(base)
        except InputError as error:
            return str(error)

    def split(main_aic: int) -> Callable[[Schedule], Schedule]:
        return lambda base: with_core_split(base, base.stages[-1].name, main_aic, hardware)

    return {
        SERIAL: of(serial, colocated),
        RECIPE: of(split(16), colocated),
        HALVES: of(split(12), colocated),
        NO_PREFETCH: replace(searched, prefetch=()),
        AFD_1_1: of(lambda base: with_ratio(base, 1), afd),
    }


def closed_form_baseline(
    base: Schedule, model: ModelSpec, hardware: Hardware
) -> tuple[str, Schedule | str, str]:
    """The base in the ratio of the closed-form A:F rule: name, schedule or why none, reasoning.

    The rule chooses among the ratios that its dies can be split in and that fit into memory.
    """
    total = base.deployment.total_dies
    ratios = [ratio for ratio in range(1, total) if total % (ratio + 1) == 0]
    made = {ratio: with_ratio(base, ratio) for ratio in ratios}
    runnable = [r for r, schedule in made.items() if rejection(schedule, model, hardware) is None]
    if not runnable:
        return CLOSED_FORM, f"none of the ratios {ratios} can run", ""
    rule = closed_form(layer_times(base, model, hardware), runnable)
    return f"{CLOSED_FORM} {rule.chosen}:1", made[rule.chosen], rule.reasoning


def prefill_baselines(base: Schedule) -> dict[str, Schedule]:
    """The baselines of a prefill search: its base, and the base with less cut up."""
    whole = replace(base, moe=replace(base.moe, chunk_tokens=None))
    alone = dict.fromkeys(("attention_tp", "o_proj_tp", "dense_tp"), 1)
    return {
        BASE: base,
        ONE_CHUNK: with_micro_batches(whole, 1),
        NO_TP: with_sizes(base, alone),
    }
