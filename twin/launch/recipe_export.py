"""A schedule to the nearest file of the LongCat recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hardware_models.errors import InputError
from twin.deployment import RoleDeployment
from twin.launch.beside import Beside, served_beside_of
from twin.launch.nearest_split import nearest_dies
from twin.launch.recipe import SIZES, schedule_of
from twin.launch.recipe_keys import RecipeSettings
from twin.launch.recipe_plan import SPLITS
from twin.model_spec import ModelSpec
from twin.schedule import Prefetch, Schedule


def nearest_recipe(
    schedule: Schedule, model: ModelSpec, afd_streams: int = 1
) -> tuple[RecipeSettings, Schedule]:
    """The settings nearest to a schedule, and the schedule that they launch.

    ``afd_streams`` is the ``enable_multi_streams`` of an AFD file, where it decides nothing.

    Raises:
        InputError: the schedule is not one of decode.
        InfeasibleError: no legal file is near.
    """
    if schedule.workload.phase != "decode":
        raise InputError(
            "workload.phase", schedule.workload.phase, "decode: prefill has no settings of its own"
        )
    deployment, workload = schedule.deployment, schedule.workload
    is_afd = deployment.is_afd
    sizes = {setting: getattr(deployment.attention, size) for size, setting in SIZES.items()}
    role = replace(RoleDeployment(dies=1), **{size: sizes[SIZES[size]] for size in SIZES})
    attention, ffn = nearest_dies(
        schedule, model, role, lambda attention, ffn: attention == ffn or not is_afd
    )
    groups = attention // role.group_dies
    settings = RecipeSettings(
        exe_mode=deployment.graph_mode,
        world_size=attention + ffn if is_afd else attention,
        batch_size=math.ceil(workload.global_batch / groups) * groups,
        next_n=workload.next_n,
        force_eplb=workload.expert_load == "balanced",
        enable_multi_streams=afd_streams if is_afd else _multi_streams(schedule),
        enable_superkernel=bool(schedule.super_kernel),
        enable_afd=is_afd,
        **sizes,
    )
    beside = served_beside_of(schedule)
    settings = replace(
        settings, enable_prefetch=_prefetch_is_nearer(schedule, settings, beside, model)
    )
    return settings, schedule_of(settings, beside, model)


def _multi_streams(schedule: Schedule) -> int:
    """0 without a MoE stream, else the setting whose main stream has the nearest cube cores."""
    limit = next(
        (stage.streams["main"].aic for stage in schedule.stages if "moe" in stage.streams), 0
    )
    if limit == 0:
        return 0
    if limit is None:
        return 1
    return min(SPLITS, key=lambda setting: abs((SPLITS[setting][0].aic or 0) - limit))


def _prefetch_is_nearer(
    schedule: Schedule, settings: RecipeSettings, beside: Beside, model: ModelSpec
) -> bool:
    """Whether the recipe's prefetches are nearer, in bytes a layer, than none at all."""
    if settings.enable_multi_streams == 0 or not schedule.prefetch:
        return False
    offered = schedule_of(replace(settings, enable_prefetch=True), beside, model).prefetch
    asked = _bytes(schedule.prefetch)
    other = _bytes(offered)
    missed = sum(abs(asked.get(key, 0) - other.get(key, 0)) for key in {*asked, *other})
    return missed < sum(asked.values())


def _bytes(prefetches: Sequence[Prefetch]) -> dict[tuple[str, bool], int]:
    return {(p.weight, p.role == "ffn"): p.bytes for p in prefetches}
