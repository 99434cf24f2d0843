"""What a schedule asks of the layers' own code: stages, streams, limits, scopes, prefetches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hardware_models.errors import InputError
from twin.deployment import Role
from twin.graph.placement import Placement
from twin.graph.shapes import die_rows, micro_batches
from twin.schedule import CoreLimit, Prefetch, Schedule, Stage
from twin.validate.deployment import MOST_ROWS


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
    """The schedule of every layer; ``moe`` is ``None`` where the MoE runs on main.

    ``links`` are the core limits of the transfers that an AFD die runs side by side; empty:
    they hold no cores.
    """

    stages: tuple[MainStage, ...]
    moe: Lane | None = None
    prefetches: tuple[Prefetch, ...] = ()
    links: tuple[CoreLimit, ...] = ()


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
"""All rows at once on one stream."""


def prefill_order(schedule: Schedule) -> PrefillOrder:
    """How ``schedule`` wants prompts to run.

    One for decode says nothing about them: one stream, and a die's experts are sent, by each die
    that they serve, its share of the most rows that the fused dispatch takes.  Under direct, as
    many as a micro-batch of decode has: the windows hold no more.
    """
    if not schedule.workload.is_prefill:
        deployment = schedule.deployment
        most = max(1, MOST_ROWS // deployment.attention_ratio)
        if deployment.is_direct:
            most = die_rows(schedule, max(micro_batches(schedule)))
        return PrefillOrder(chunk_tokens=most)
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
        links=_link_limits(schedule, role),
    )


def _link_limits(schedule: Schedule, role: Role) -> tuple[CoreLimit, ...]:
    """The vector cores of a role's transfers, dealt out among those that run side by side."""
    afd = schedule.deployment.afd
    if afd is None or not afd.holds_cores:
        return ()
    parts = schedule.deployment.ffn_transfers if role == "ffn" else 1
    place = Placement(schedule, role, ()).link
    return tuple(place("link", part, parts).limit for part in range(parts))


def _lane(schedule: Schedule, stage: Stage, stream: str) -> Lane:
    labels = (stage.name, f"{stage.name}.{stream}")
    scope = next((label for label in labels if label in schedule.super_kernel), None)
    return Lane(stream, stage.streams[stream], scope)


def check_supported(schedule: Schedule, source: str) -> None:
    """Refuse what this runtime does not execute, instead of leaving it out silently.

    ``workload.global_batch``, ``kv_tokens``, ``acceptance`` and ``expert_load`` describe the
    traffic that was simulated: here the prompts, the drafts and the router decide.  The graph
    mode and the hardware are those of the simulated die: a CPU compiles no graph.
    ``schedule`` obeys every rule of :func:`twin.validate.validate_schedule`.

    Raises:
        InputError: names the field, its value and what is supported.
    """
    afd = schedule.deployment.afd

    def refuse(field: str, value: object, allowed: str) -> None:
        raise InputError(field, value, f"{allowed} (what the runtime executes)", source)

    if schedule.moe.redundant_experts != 0:
        refuse("moe.redundant_experts", schedule.moe.redundant_experts, "0")
    if afd is not None and afd.transport == "camp2p":
        allowed = (
            "sdma_pairs or direct: vLLM's AFD plugin moves rows so, torch_npu has no op for it"
        )
        refuse("deployment.afd.transport", afd.transport, allowed)
