"""The parts of a schedule that a target may be unable to say, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twin.deployment import Role, RoleDeployment
from twin.schedule import CoreLimit, Prefetch, Schedule, Stage

Show = Callable[[Any, Any], tuple[str, str]]
_MIB = 1024**2


def _plainly(asked: Any, nearest: Any) -> tuple[str, str]:
    return str(asked), str(nearest)


@dataclass(frozen=True, slots=True)
class Part:
    """A part by name: how to read it, how to put it into another schedule, how to show two."""

    name: str
    get: Callable[[Schedule], Any]
    put: Callable[[Schedule, Any], Schedule]
    show: Show = _plainly


def _workload(name: str) -> Part:
    return Part(
        f"workload.{name}",
        lambda schedule: getattr(schedule.workload, name),
        lambda schedule, value: replace(
            schedule, workload=replace(schedule.workload, **{name: value})
        ),
    )


def _put_deployment(schedule: Schedule, **changes: Any) -> Schedule:
    return replace(schedule, deployment=replace(schedule.deployment, **changes))


def _deployment(name: str) -> Part:
    return Part(
        f"deployment.{name}",
        lambda schedule: getattr(schedule.deployment, name),
        lambda schedule, value: _put_deployment(schedule, **{name: value}),
    )


def _afd(name: str) -> Part:
    def put(schedule: Schedule, value: Any) -> Schedule:
        afd = schedule.deployment.afd
        return (
            schedule
            if afd is None
            else _put_deployment(schedule, afd=replace(afd, **{name: value}))
        )

    return Part(
        f"deployment.afd.{name}", lambda schedule: getattr(schedule.deployment.afd, name, None), put
    )


def _sizes(name: str) -> Part:
    def put(schedule: Schedule, value: Any) -> Schedule:
        deployment = schedule.deployment
        role = replace(deployment.attention, **{name: value})
        return _put_deployment(
            schedule, roles={**deployment.roles, deployment.attention_role: role}
        )

    return Part(
        f"deployment.roles.{name}",
        lambda schedule: getattr(schedule.deployment.attention, name),
        put,
    )


def _dies_of(schedule: Schedule) -> dict[Role, tuple[int, int]]:
    return {name: (role.dies, role.ep) for name, role in schedule.deployment.roles.items()}


def _put_dies(schedule: Schedule, value: Mapping[Role, tuple[int, int]]) -> Schedule:
    roles: dict[Role, RoleDeployment] = {
        name: replace(role, dies=value[name][0], ep=value[name][1])
        for name, role in schedule.deployment.roles.items()
    }
    return _put_deployment(schedule, roles=roles)


def _show_dies(asked: Any, nearest: Any) -> tuple[str, str]:
    def text(dies: Mapping[Role, tuple[int, int]]) -> str:
        return " + ".join(f"{count} {role}" for role, (count, _) in dies.items())

    return text(asked), text(nearest)


def _moe(name: str) -> Part:
    return Part(
        f"moe.{name}",
        lambda schedule: getattr(schedule.moe, name),
        lambda schedule, value: replace(schedule, moe=replace(schedule.moe, **{name: value})),
    )


def _show_stages(asked: Any, nearest: Any) -> tuple[str, str]:
    return _stages_text(asked), _stages_text(nearest)


def _stages_text(stages: Sequence[Stage]) -> str:
    return "; ".join(
        f"{stage.name}{f' to {stage.ends_after}' if stage.ends_after else ''}: "
        + " + ".join(f"{name} {_limit_text(limit)}" for name, limit in stage.streams.items())
        for stage in stages
    )


def _limit_text(limit: CoreLimit) -> str:
    if limit == CoreLimit():
        return "without a limit"
    cores = ((limit.aic, "c"), (limit.aiv, "v"))
    return "".join(f"{letter}{count}" for count, letter in cores if count is not None)


def _show_prefetches(asked: Any, nearest: Any) -> tuple[str, str]:
    """Only the entries that differ, or the orders where nothing else does."""
    one, other = set(asked), set(nearest)
    if one == other:
        return _prefetches_text(asked), _prefetches_text(nearest)
    return (
        _prefetches_text([p for p in asked if p not in other]),
        _prefetches_text([p for p in nearest if p not in one]),
    )


def _prefetches_text(prefetches: Sequence[Prefetch]) -> str:
    return (
        "; ".join(f"{p.weight} {p.bytes / _MIB:.4g} MiB after {p.after}" for p in prefetches)
        or "none"
    )


def _show_scopes(asked: Any, nearest: Any) -> tuple[str, str]:
    return ", ".join(asked) or "none", ", ".join(nearest) or "none"


def _put_stages(schedule: Schedule, value: Any) -> Schedule:
    return replace(schedule, stages=value)


PARTS: tuple[Part, ...] = (
    *(_workload(n) for n in ("phase", "next_n", "acceptance", "kv_tokens", "expert_load")),
    _deployment("hardware"),
    _deployment("quantisation"),
    _afd("transport"),
    _afd("micro_batches"),
    Part("deployment.roles", _dies_of, _put_dies, _show_dies),
    _workload("global_batch"),
    *(
        _sizes(n)
        for n in ("attention_tp", "kvp", "o_proj_tp", "dense_tp", "lm_head_tp", "embed_tp")
    ),
    _moe("redundant_experts"),
    _moe("chunk_tokens"),
    Part("stages", lambda s: s.stages, _put_stages, _show_stages),
    Part(
        "prefetch",
        lambda s: s.prefetch,
        lambda s, value: replace(s, prefetch=value),
        _show_prefetches,
    ),
    Part(
        "super_kernel",
        lambda s: s.super_kernel,
        lambda s, value: replace(s, super_kernel=value),
        _show_scopes,
    ),
    _deployment("graph_mode"),
    Part("prefill", lambda s: s.prefill, lambda s, value: replace(s, prefill=value)),
)
"""In the order in which differences are made where rules leave a choice."""
