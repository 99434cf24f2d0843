"""The searched space: an index is a choice of one level for every knob, and so a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.deployment import Afd, Deployment, Role, RoleDeployment
from twin.model_spec import ModelSpec
from twin.names import layer_chains
from twin.schedule import CoreLimit, Prefetch, PrefillPlan, Schedule
from twin.search.config import Knob
from twin.search.transport import transport_op
from twin.weights import weight_bytes

DIES = "dies"
"""Name of the knob that a list of die counts adds to the space."""


@dataclass(frozen=True)
class Space:
    """All schedules that the knobs make of ``base``; the first knob varies slowest."""

    base: Schedule
    model: ModelSpec
    hardware: Hardware
    knobs: Mapping[str, Knob]
    dies: tuple[int, ...]

    @cached_property
    def levels(self) -> dict[str, tuple[float, ...]]:
        """The levels of every knob by name, slowest first."""
        levels = {name: knob.levels for name, knob in self.knobs.items()}
        return {DIES: self.dies, **levels} if len(self.dies) > 1 else levels

    @property
    def size(self) -> int:
        """Number of candidates, infeasible ones included."""
        return math.prod(len(levels) for levels in self.levels.values())

    def choice(self, index: int) -> dict[str, float]:
        """The level of every knob at ``index``."""
        chosen = {}
        for name, levels in reversed(self.levels.items()):
            index, place = divmod(index, len(levels))
            chosen[name] = levels[place]
        return {name: chosen[name] for name in self.levels}

    def check(self) -> None:
        """Refuse knobs that drive what the base schedule does not have.

        Raises:
            InputError: names the knob's key.
        """
        stages = [stage.name for stage in self.base.stages]
        roles = sorted(self.base.deployment.roles)
        for name, knob in self.knobs.items():
            key = f"search.knobs.{name}"
            if knob.drives == "cores" and knob.stage not in stages:
                raise InputError(f"{key}.stage", knob.stage, f"a stage of the base: {stages}")
            if knob.role is not None and knob.role not in roles:
                raise InputError(f"{key}.role", knob.role, f"a role of the base: {roles}")
            self._check_drives(f"{key}.drives", knob.drives)

    def _check_drives(self, key: str, drives: str) -> None:
        is_afd, is_prefill = self.base.deployment.is_afd, self.base.workload.is_prefill
        fits = {"ratio": is_afd, "micro_batches": is_afd or is_prefill, "chunk": is_prefill}
        if not fits.get(drives, True):
            raise InputError(key, drives, "a knob of a colocated decode schedule")

    def schedule(self, index: int) -> Schedule:
        """The candidate at ``index``; its rules are not checked yet.

        Raises:
            InputError: the dies cannot be split in the chosen ratio.
        """
        choice = self.choice(index)
        total = int(choice[DIES]) if DIES in choice else (*self.dies, None)[0]
        schedule = with_dies(self.base, total)
        for name, knob in self.knobs.items():
            schedule = self._apply(schedule, knob, choice[name])
        return schedule

    def _apply(self, schedule: Schedule, knob: Knob, level: float) -> Schedule:
        if knob.drives == "ratio":
            return with_ratio(schedule, int(level))
        if knob.drives == "micro_batches":
            return with_micro_batches(schedule, int(level))
        if knob.drives == "chunk":
            return replace(schedule, moe=replace(schedule.moe, chunk_tokens=int(level)))
        if knob.drives == "sizes":
            return with_sizes(schedule, dict.fromkeys(knob.sizes or (), int(level)))
        if knob.drives == "cores":
            return with_core_split(schedule, str(knob.stage), int(level), self.hardware)
        return self._with_prefetch(schedule, knob, level)

    def _with_prefetch(self, schedule: Schedule, knob: Knob, share: float) -> Schedule:
        """Set every weight of the knob to ``share`` of its size; 0 leaves it out."""
        deployment = schedule.deployment
        default = deployment.attention_role
        role = knob.role or default
        wanted = dict(knob.weights or {})
        result: list[Prefetch] = []
        base = {(p.role or default, p.weight): p for p in schedule.prefetch}
        for (holder, weight), old in base.items():
            if holder != role or weight not in wanted:
                result.append(old)
                continue
            after = present_op(deployment, role, wanted.pop(weight))
            size = self._share(schedule, weight, share)
            if size:
                result.append(replace(old, after=after, bytes=size))
        for weight, named in wanted.items():
            after = present_op(deployment, role, named)
            size = self._share(schedule, weight, share)
            if size:
                result.append(Prefetch(weight=weight, after=after, bytes=size, role=knob.role))
        return replace(schedule, prefetch=tuple(result))

    def _share(self, schedule: Schedule, weight: str, share: float) -> int:
        size = weight_bytes(
            self.model,
            schedule.deployment,
            weight.removeprefix("next."),
            schedule.moe.redundant_experts,
        )
        return round(size * share)


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


def with_dies(schedule: Schedule, total: int | None) -> Schedule:
    """The schedule on ``total`` dies, its AFD ratio kept; ``None`` changes nothing.

    Raises:
        InputError: the dies cannot be split in the schedule's ratio.
    """
    deployment = schedule.deployment
    if total is None or total == deployment.total_dies:
        return schedule
    if deployment.is_afd:
        return with_ratio(schedule, deployment.attention_ratio, total)
    role = deployment.roles["colocated"]
    roles: dict[Role, RoleDeployment] = {"colocated": replace(role, dies=total, ep=total)}
    return replace(schedule, deployment=replace(deployment, roles=roles))


def with_ratio(schedule: Schedule, ratio: int, total: int | None = None) -> Schedule:
    """The AFD schedule with ``ratio`` attention dies for each FFN die, on the same dies.

    Raises:
        InputError: ``ratio`` + 1 does not divide the dies.
    """
    deployment = schedule.deployment
    dies = deployment.total_dies if total is None else total
    ffn, rest = divmod(dies, ratio + 1)
    if rest or not deployment.is_afd:
        raise InputError("ratio", f"{ratio}:1", f"A:F whose parts divide {dies} dies of two roles")
    roles = dict(deployment.roles)
    roles["attention"] = replace(roles["attention"], dies=dies - ffn)
    roles["ffn"] = replace(roles["ffn"], dies=ffn, ep=ffn)
    # A prefetch of experts was sized for another expert count; keep its share of the weight.
    scale = deployment.roles["ffn"].ep / ffn
    prefetch = tuple(
        replace(p, bytes=round(p.bytes * scale)) if p.weight.endswith((".w13", ".w2")) else p
        for p in schedule.prefetch
    )
    return replace(schedule, deployment=replace(deployment, roles=roles), prefetch=prefetch)


def with_micro_batches(schedule: Schedule, parts: int) -> Schedule:
    """The schedule with so many micro-batches, between the roles of AFD or in a prefill step."""
    if schedule.workload.is_prefill:
        return replace(schedule, prefill=PrefillPlan(micro_batches=parts))
    afd = replace(schedule.deployment.afd or Afd(), micro_batches=parts)
    return replace(schedule, deployment=replace(schedule.deployment, afd=afd))


def with_sizes(schedule: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """The schedule with other parallel sizes of the role that holds attention."""
    deployment = schedule.deployment
    roles = dict(deployment.roles)
    roles[deployment.attention_role] = replace(deployment.attention, **sizes)
    return replace(schedule, deployment=replace(deployment, roles=roles))


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
