"""Changes of a schedule that a search tries: each gives another schedule, unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.deployment import Afd, Deployment, Role, RoleDeployment
from twin.names import layer_chains
from twin.schedule import CoreLimit, PrefillPlan, Schedule
from twin.search.transport import transport_op
from twin.workload import accepted_of, chance_of


def present_op(deployment: Deployment, role: Role, op: str) -> str:
    """``op``, or where this deployment lacks it the last op before it that is there.

    A deployment without tensor parallelism, a split KV cache or quantisation has no ops for
    them, so a space that names one stays usable.
    """
    present = {name for chain in layer_chains(deployment, role) for name in chain}
    if op in present:
        return op
    moved = transport_op(deployment, role, op)
    if moved != op or role == "ffn":
        return moved
    holder = deployment.attention_role
    plain = replace(deployment.roles[holder], o_proj_tp=2, dense_tp=2, attention_tp=1, kvp=1)
    for sizes in (plain, replace(plain, attention_tp=2), replace(plain, kvp=2)):
        other = replace(deployment, quantisation="w8a8", roles={**deployment.roles, holder: sizes})
        for chain in layer_chains(other, role):
            if op in chain:
                before = [name for name in chain[: chain.index(op)] if name in present]
                return before[-1] if before else op
    return op


_SPLIT_BY = {
    **dict.fromkeys(("q_b", "uk", "uv"), "attention_tp"),
    "o_proj": "o_proj_tp",
    **dict.fromkeys(("gate_up", "down"), "dense_tp"),
    **dict.fromkeys(("w13", "w2"), "ep"),
}
"""The parallel size that a weight is split by, by the last part of its name."""


def with_deployment(schedule: Schedule, deployment: Deployment) -> Schedule:
    """The schedule deployed otherwise; prefetches keep their share of weights split anew."""

    def size(of: Deployment, weight: str) -> int:
        name = _SPLIT_BY.get(weight.rpartition(".")[2])
        return 1 if name is None else int(getattr(of.moe if name == "ep" else of.attention, name))

    prefetch = tuple(
        replace(p, bytes=round(p.bytes * Fraction(was, now))) if was != now else p
        for p in schedule.prefetch
        for was, now in [(size(schedule.deployment, p.weight), size(deployment, p.weight))]
    )
    return replace(schedule, deployment=deployment, prefetch=prefetch)


def with_dies(schedule: Schedule, total: int | None) -> Schedule:
    """The schedule on ``total`` dies, its AFD ratio kept; ``None`` changes nothing.

    Raises:
        InputError: the dies cannot be split in the schedule's ratio.
    """
    deployment = schedule.deployment
    if total is None or total == deployment.total_dies:
        return schedule
    if deployment.is_afd:
        return _with_ffn_dies(schedule, total, _ffn_share(deployment))
    role = deployment.roles["colocated"]
    roles: dict[Role, RoleDeployment] = {"colocated": replace(role, dies=total, ep=total)}
    return with_deployment(schedule, replace(deployment, roles=roles))


def with_ratio(schedule: Schedule, ratio: int) -> Schedule:
    """The AFD schedule with ``ratio`` attention dies for each FFN die, on the same dies.

    Raises:
        InputError: ``ratio`` + 1 does not divide the dies.
    """
    return _with_ffn_dies(schedule, schedule.deployment.total_dies, Fraction(1, ratio + 1))


def _ffn_share(deployment: Deployment) -> Fraction:
    return Fraction(deployment.roles["ffn"].dies, deployment.total_dies)


def _with_ffn_dies(schedule: Schedule, total: int, share: Fraction) -> Schedule:
    """The AFD schedule on ``total`` dies, a ``share`` of them for the FFN."""
    deployment = schedule.deployment
    ffn = total * share
    if ffn.denominator != 1 or not deployment.is_afd:
        ratio = f"{1 / share - 1}:1"
        raise InputError("ratio", ratio, f"A:F whose parts divide {total} dies of two roles")
    roles = dict(deployment.roles)
    roles["attention"] = replace(roles["attention"], dies=total - int(ffn))
    roles["ffn"] = replace(roles["ffn"], dies=int(ffn), ep=int(ffn))
    return with_deployment(schedule, replace(deployment, roles=roles))


def with_micro_batches(schedule: Schedule, parts: int) -> Schedule:
    """The schedule with so many micro-batches, between the roles of AFD or in a prefill step."""
    if schedule.workload.is_prefill:
        plan = schedule.prefill or PrefillPlan()
        return replace(schedule, prefill=replace(plan, micro_batches=parts))
    afd = replace(schedule.deployment.afd or Afd(), micro_batches=parts)
    return replace(schedule, deployment=replace(schedule.deployment, afd=afd))


def with_batch(schedule: Schedule, sequences: int) -> Schedule:
    """The schedule with another global batch."""
    return replace(schedule, workload=replace(schedule.workload, global_batch=sequences))


def with_drafts(schedule: Schedule, drafts: int) -> Schedule:
    """The schedule with another MTP depth, each draft as likely to be accepted as before.

    Where there were no drafts nothing says how likely that is: none is accepted.
    """
    workload = schedule.workload
    if drafts == workload.next_n:
        return schedule
    chance = chance_of(workload.acceptance, workload.next_n) if workload.next_n else 0.0
    accepted = accepted_of(chance, drafts)
    return replace(schedule, workload=replace(workload, next_n=drafts, acceptance=accepted))


def with_stage_end(schedule: Schedule, stage_name: str, op: str) -> Schedule:
    """The schedule with a stage that ends after another op of the main stream."""
    stages = tuple(
        replace(stage, ends_after=op) if stage.name == stage_name else stage
        for stage in schedule.stages
    )
    return replace(schedule, stages=stages)


def with_sizes(schedule: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """The schedule with other parallel sizes of the role that holds attention."""
    deployment = schedule.deployment
    roles = dict(deployment.roles)
    roles[deployment.attention_role] = replace(deployment.attention, **sizes)
    return with_deployment(schedule, replace(deployment, roles=roles))


def with_core_split(
    schedule: Schedule, stage_name: str, main_aic: int, hardware: Hardware
) -> Schedule:
    """Cube cores of a stage's main stream; its moe stream takes the rest of the die."""
    aic, aiv = hardware.count("aic_count"), hardware.count("aiv_count")
    per_cube = aiv // aic
    streams = {
        "main": CoreLimit(aic=main_aic, aiv=main_aic * per_cube),
        "moe": CoreLimit(aic=aic - main_aic, aiv=aiv - main_aic * per_cube),
    }
    stages = tuple(
        replace(stage, streams=streams) if stage.name == stage_name else stage
        for stage in schedule.stages
    )
    if stages == schedule.stages and stage_name not in [s.name for s in stages]:
        raise InputError("search.knobs", stage_name, f"a stage: {[s.name for s in stages]}")
    return replace(schedule, stages=stages)


def with_vector_split(
    schedule: Schedule, stage_name: str, main_aiv: int, hardware: Hardware
) -> Schedule:
    """Vector cores of a stage's main stream; its moe stream takes the rest of the die."""
    aiv = {"main": main_aiv, "moe": hardware.count("aiv_count") - main_aiv}
    stages = tuple(
        replace(
            stage,
            streams={
                name: replace(limit, aiv=aiv.get(name, limit.aiv))
                for name, limit in stage.streams.items()
            },
        )
        if stage.name == stage_name
        else stage
        for stage in schedule.stages
    )
    return replace(schedule, stages=stages)
