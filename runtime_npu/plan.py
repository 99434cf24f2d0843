"""What a schedule asks of the layers' own code: stages, streams, limits, scopes, prefetches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
"""One stream, all cores, no scope, no prefetch."""


@dataclass(frozen=True, slots=True)
class PrefillOrder:
    """How prompts run: in ``micro_batches`` parts, whose exchanges run on stream ``exchanges``.

    At most ``chunk_tokens`` rows of a die go through the experts at once (``None``: all).
    ``is_planned``: as in the step graph of a prefill schedule, where prompts are equally long
    (here padded to the longest) and only their last tokens pass the final norm.
    """

    micro_batches: int = 1
    exchanges: str = "main"
    chunk_tokens: int | None = None
    is_planned: bool = False


PLAIN_PREFILL = PrefillOrder()
"""All rows at once on one stream: how prompts run where the schedule is for decode."""


def prefill_order(schedule: Schedule) -> PrefillOrder:
    """How ``schedule`` wants prompts to run."""
    if not schedule.workload.is_prefill:
        return PLAIN_PREFILL
    overlaps = schedule.micro_batches > 1 and "link" in schedule.stages[0].streams
    return PrefillOrder(
        micro_batches=schedule.micro_batches,
        exchanges="link" if overlaps else "main",
        chunk_tokens=schedule.moe.chunk_tokens,
        is_planned=True,
    )


def for_prompts(schedule: Schedule, lengths: Sequence[int]) -> Schedule:
    """A prefill schedule for prompts of these lengths, instead of those that it was made for.

    Every attention group has at least one sequence, if only of padding.
    """
    if not schedule.workload.is_prefill:
        return schedule
    batch = max(len(lengths), schedule.deployment.attention.attention_groups)
    workload = replace(schedule.workload, global_batch=batch, kv_tokens=max(lengths))
    return replace(schedule, workload=workload)


def layer_plan(schedule: Schedule, role: Role = "colocated") -> LayerPlan:
    """The plan of a role's decode layers; of a prefill schedule's one stream runs them."""
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
    if workload.is_prefill:
        _each(refuse, "deployment.roles", sorted(deployment.roles), (["colocated"],))
    for role in deployment.roles:
        streams = ("main", "link") if workload.is_prefill else STREAMS[role]
        _check_stages(refuse, schedule, role, streams)


def _check_stages(
    refuse: Callable[[str, object, str], None],
    schedule: Schedule,
    role: Role,
    streams: tuple[str, ...],
) -> None:
    own = [stage for stage in schedule.stages if stage.role == role]
    for stage in own:
        unknown = sorted(set(stage.streams) - set(streams))
        if unknown or "main" not in stage.streams:
            allowed = f"main, or main and {streams[1]}"
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
