"""What a schedule asks of the layers' own code: stages, streams, limits, scopes, prefetches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hardware_models.errors import InputError
from twin.names import STREAMS, main_ops, outside_ops
from twin.schedule import CoreLimit, Prefetch, Schedule, Stage


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream within a stage: its core limit and its SuperKernel scope, if any."""

    stream: str
    limit: CoreLimit
    scope: str | None


@dataclass(frozen=True, slots=True)
class MainStage:
    """A stage's stretch of the main stream, up to and including the op ``ends_after``."""

    lane: Lane
    ends_after: str | None


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The schedule of every layer; ``moe`` is ``None`` where the MoE runs on main."""

    stages: tuple[MainStage, ...]
    moe: Lane | None = None
    prefetches: tuple[Prefetch, ...] = ()


PLAIN = LayerPlan((MainStage(Lane("main", CoreLimit(), None), None),))
"""One stream, all cores, no scope, no prefetch: how prefill runs."""


def layer_plan(schedule: Schedule) -> LayerPlan:
    """The plan of a colocated schedule's decode layers."""
    return LayerPlan(
        stages=tuple(
            MainStage(_lane(schedule, stage, "main"), stage.ends_after) for stage in schedule.stages
        ),
        moe=next(
            (_lane(schedule, stage, "moe") for stage in schedule.stages if "moe" in stage.streams),
            None,
        ),
        prefetches=schedule.prefetches_of("colocated"),
    )


def _lane(schedule: Schedule, stage: Stage, stream: str) -> Lane:
    labels = (stage.name, f"{stage.name}.{stream}")
    scope = next((label for label in labels if label in schedule.super_kernel), None)
    return Lane(stream, stage.streams[stream], scope)


def check_supported(schedule: Schedule, source: str) -> None:
    """Refuse what this runtime does not execute, instead of leaving it out silently.

    ``workload.global_batch``, ``kv_tokens`` and ``expert_load`` describe the traffic that
    was simulated: here the prompts and the router decide.

    Raises:
        InputError: names the field, its value and what is supported.
    """
    deployment, workload = schedule.deployment, schedule.workload

    def refuse(field: str, value: object, supported: str) -> None:
        raise InputError(field, value, f"{supported} (what the runtime executes)", source)

    _each(refuse, "workload.phase", workload.phase, ("decode",))
    _each(refuse, "workload.next_n", workload.next_n, (0,))
    _each(refuse, "deployment.quantisation", deployment.quantisation, ("fp32", "bf16"))
    if set(deployment.roles) != {"colocated"}:
        refuse("deployment.roles", sorted(deployment.roles), "colocated alone")
    if deployment.afd is not None:
        refuse("deployment.afd", deployment.afd, "none")
    role = deployment.roles["colocated"]
    for size in role.__dataclass_fields__:
        _each(refuse, f"deployment.roles.colocated.{size}", getattr(role, size), (1,))
    _each(refuse, "moe.redundant_experts", schedule.moe.redundant_experts, (0,))
    for stage in schedule.stages:
        unknown = sorted(set(stage.streams) - set(STREAMS["colocated"]))
        if unknown or "main" not in stage.streams:
            refuse(f"stages.{stage.name}.streams", sorted(stage.streams), "main, or main and moe")
        _each(refuse, f"stages.{stage.name}.join", stage.join, (None, "add"))
    ends = [stage.ends_after for stage in schedule.stages]
    known = main_ops(deployment, "colocated")
    if ends[-1] is not None or any(end not in known for end in ends[:-1]):
        refuse("stages.ends_after", ends, "an op of the main stream on all stages but the last")
    outside = ("embed", *outside_ops(deployment, workload.next_n))
    for prefetch in schedule.prefetch:
        if prefetch.after in outside and prefetch.weight != "lm_head":
            refuse("prefetch.weight", prefetch.weight, f"lm_head after {prefetch.after}")
    if sum("moe" in stage.streams for stage in schedule.stages) > 1:
        refuse("stages", [stage.name for stage in schedule.stages], "one stage with a moe stream")


def _each(
    refuse: Callable[[str, object, str], None],
    field: str,
    value: object,
    allowed: tuple[object, ...],
) -> None:
    if value not in allowed:
        refuse(field, value, " or ".join(str(item) for item in allowed))
