"""One spelling for schedules that mean the same: names of stages, scopes, roles of prefetches."""

from __future__ import annotations

from dataclasses import replace

from twin.names import COMPUTE_STREAMS
from twin.schedule import Schedule, Stage


def spelled(schedule: Schedule) -> Schedule:
    """The same schedule as an import would spell it; every op of its step stays what it is.

    Stages are called stage1 and stage2 (serial with one stream, attention and ffn with AFD),
    scopes follow the stages, and a prefetch names its role only on FFN dies of AFD.
    """
    renamed = {stage.name: _name(schedule, stage) for stage in schedule.stages}
    # The last role to come is ffn; the order of prefetches matters only within a role.
    default = schedule.deployment.attention_role
    prefetch = sorted(
        (replace(p, role=None if p.role == default else p.role) for p in schedule.prefetch),
        key=lambda p: p.role is not None,
    )
    return replace(
        schedule,
        stages=tuple(replace(stage, name=renamed[stage.name]) for stage in schedule.stages),
        prefetch=tuple(prefetch),
        super_kernel=tuple(
            _scope(renamed[stage.name], stage, stream)
            for stage in schedule.stages
            for stream in COMPUTE_STREAMS
            if _is_scoped(schedule, stage, stream)
        ),
    )


def _name(schedule: Schedule, stage: Stage) -> str:
    if stage.role != "colocated":
        return stage.role
    if stage.ends_after is not None:
        return "stage1"
    return "stage2" if len(schedule.stages) > 1 or "moe" in stage.streams else "serial"


def _is_scoped(schedule: Schedule, stage: Stage, stream: str) -> bool:
    if stream not in stage.streams:
        return False
    alone = "moe" not in stage.streams
    scopes = (f"{stage.name}.{stream}", *((stage.name,) if alone else ()))
    return any(scope in schedule.super_kernel for scope in scopes)


def _scope(name: str, stage: Stage, stream: str) -> str:
    is_bare = stage.role == "colocated" and "moe" not in stage.streams
    return name if is_bare else f"{name}.{stream}"
