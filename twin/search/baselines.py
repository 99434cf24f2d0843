"""Baselines: schedules that always stand beside what a search found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.schedule import CoreLimit, Schedule, Stage
from twin.search.changes import with_core_split, with_micro_batches, with_ratio, with_sizes

SERIAL = "serial, all cores"
RECIPE = "recipe c16v32 + c8v16"
HALVES = "c12v24 twice"
NO_PREFETCH = "no prefetch"
AFD_1_1 = "AFD 1:1"
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


def prefill_baselines(base: Schedule) -> dict[str, Schedule]:
    """The baselines of a prefill search: its base, and the base with less cut up."""
    whole = replace(base, moe=replace(base.moe, chunk_tokens=None))
    alone = dict.fromkeys(("attention_tp", "o_proj_tp", "dense_tp"), 1)
    return {
        BASE: base,
        ONE_CHUNK: with_micro_batches(whole, 1),
        NO_TP: with_sizes(base, alone),
    }
