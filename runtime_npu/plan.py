"""What a schedule asks of the layers' own code: stages, streams, limits, scopes, prefetches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hardware_models.errors import InputError
from twin.deployment import Role
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


def layer_plan(schedule: Schedule, role: Role = "colocated") -> LayerPlan:
    """The plan of a role's decode layers."""
    own = [stage for stage in schedule.stages if stage.role == role]
    return LayerPlan(
        stages=tuple(MainStage(_lane(schedule, stage, "main"), stage.ends_after) for stage in own),
        moe=next((_lane(schedule, stage, "moe") for stage in own if "moe" in stage.streams), None),
        prefetches=schedule.prefetches_of(role),
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
    attention, afd = deployment.attention, deployment.afd
    if workload.next_n and attention.attention_tp > 1 and afd is not None:
        _each(refuse, "deployment.afd.micro_batches", afd.micro_batches, (1,))
    _each(refuse, "moe.redundant_experts", schedule.moe.redundant_experts, (0,))
    if deployment.afd is not None:
        _each(refuse, "deployment.afd.transport", deployment.afd.transport, ("sdma_pairs",))
    outside = ("embed", *outside_ops(deployment, workload.next_n))
    for prefetch in schedule.prefetch:
        is_outside = prefetch.weight == "lm_head" or prefetch.weight.startswith("mtp.")
        if prefetch.after in outside and not is_outside:
            refuse("prefetch.weight", prefetch.weight, f"lm_head or mtp.* after {prefetch.after}")
    for role in deployment.roles:
        _check_stages(refuse, schedule, role)


def _check_stages(
    refuse: Callable[[str, object, str], None], schedule: Schedule, role: Role
) -> None:
    own = [stage for stage in schedule.stages if stage.role == role]
    for stage in own:
        unknown = sorted(set(stage.streams) - set(STREAMS[role]))
        if unknown or "main" not in stage.streams:
            allowed = f"main, or main and {STREAMS[role][1]}"
            refuse(f"stages.{stage.name}.streams", sorted(stage.streams), allowed)
        _each(refuse, f"stages.{stage.name}.join", stage.join, (None, "add"))
    ends = [stage.ends_after for stage in own]
    known = main_ops(schedule.deployment, role)
    if not own or ends[-1] is not None or any(end not in known for end in ends[:-1]):
        refuse("stages.ends_after", ends, "an op of the main stream on all stages but the last")
    if sum("moe" in stage.streams for stage in own) > 1:
        refuse("stages", [stage.name for stage in own], "one stage with a moe stream")


def _each(
    refuse: Callable[[str, object, str], None],
    field: str,
    value: object,
    allowed: tuple[object, ...],
) -> None:
    if value not in allowed:
        refuse(field, value, " or ".join(str(item) for item in allowed))
