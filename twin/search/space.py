"""The searched space: an index is a choice of one level for every knob, and so a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast, get_args

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.choices import Level
from twin.deployment import Transport
from twin.model_spec import ModelSpec
from twin.names import NEXT, layer_weights
from twin.schedule import Prefetch, Schedule
from twin.search.changes import (
    present_op,
    with_batch,
    with_core_split,
    with_dies,
    with_drafts,
    with_micro_batches,
    with_ratio,
    with_sizes,
    with_stage_end,
    with_vector_split,
)
from twin.search.config import Drives, Knob
from twin.search.transport import with_transport
from twin.weights import weight_bytes

DIES = "dies"
"""Name of the knob that a list of die counts adds to the space."""


# A knob that sets what another one refines has to come first.
_REFINED_BY: Mapping[Drives, Drives] = {"cores": "vector_cores", "prefetch": "place"}


@dataclass(frozen=True)
class Space:
    """All schedules that the knobs make of ``base``; the first knob varies slowest."""

    base: Schedule
    model: ModelSpec
    hardware: Hardware
    knobs: Mapping[str, Knob]
    dies: tuple[int, ...]

    @cached_property
    def levels(self) -> dict[str, tuple[Level, ...]]:
        """The levels of every knob by name, slowest first."""
        levels: dict[str, tuple[Level, ...]] = {
            name: knob.levels for name, knob in self.knobs.items()
        }
        return {DIES: self.dies, **levels} if len(self.dies) > 1 else levels

    @property
    def size(self) -> int:
        """Number of candidates, infeasible ones included."""
        return math.prod(len(levels) for levels in self.levels.values())

    def choice(self, index: int) -> dict[str, Level]:
        """The level of every knob at ``index``."""
        chosen = {}
        for name, levels in reversed(self.levels.items()):
            index, place = divmod(index, len(levels))
            chosen[name] = levels[place]
        return {name: chosen[name] for name in self.levels}

    def neighbours(self, index: int, name: str) -> list[int]:
        """The candidates that differ from the one at ``index`` in the knob ``name`` alone."""
        after = list(self.levels)[list(self.levels).index(name) + 1 :]
        stride = math.prod(len(self.levels[other]) for other in after)
        place = index // stride % len(self.levels[name])
        first = index - place * stride
        every = range(first, first + stride * len(self.levels[name]), stride)
        return [other for other in every if other != index]

    def check(self) -> None:
        """Refuse knobs that drive what the base schedule does not have.

        Raises:
            InputError: names the knob's key.
        """
        stages = [stage.name for stage in self.base.stages]
        roles = sorted(self.base.deployment.roles)
        for name, knob in self.knobs.items():
            key = f"search.knobs.{name}"
            if knob.stage is not None and knob.stage not in stages:
                raise InputError(f"{key}.stage", knob.stage, f"a stage of the base: {stages}")
            if knob.role is not None and knob.role not in roles:
                raise InputError(f"{key}.role", knob.role, f"a role of the base: {roles}")
            self._check_drives(f"{key}.drives", knob.drives)
            self._check_weights(f"{key}.weights", knob)
        self._check_overlaps()

    def _check_weights(self, key: str, knob: Knob) -> None:
        """Refuse weights that the role holds in no transport: slips of the pen."""
        deployment = self.base.deployment
        role = knob.role or deployment.attention_role
        transports = get_args(Transport) if deployment.is_afd else ()
        others = [with_transport(self.base, transport).deployment for transport in transports]
        held = {w for each in (deployment, *others) for w in layer_weights(each, role)}
        for weight in knob.weights or {}:
            if weight.removeprefix(NEXT) not in held:
                raise InputError(key, weight, f"weights of a {role} die: {sorted(held)}")

    def _check_overlaps(self) -> None:
        """Refuse knobs that undo each other: two for one thing, or the coarse one applied last."""
        owner: dict[tuple[str, str], str] = {}
        for name, knob in self.knobs.items():
            key = f"search.knobs.{name}.drives"
            for thing in self._things(knob):
                if (knob.drives, thing) in owner:
                    other = f"not what {owner[knob.drives, thing]} drives already: {thing}"
                    raise InputError(key, knob.drives, other)
                owner[knob.drives, thing] = name
                finer = _REFINED_BY.get(knob.drives)
                if finer is not None and (finer, thing) in owner:
                    raise InputError(key, knob.drives, f"before the {finer} knob of {thing}")

    def _things(self, knob: Knob) -> list[str]:
        """What a knob sets, each by a name."""
        if knob.weights:
            role = knob.role or self.base.deployment.attention_role
            return [f"{weight} of a {role} die" for weight in knob.weights]
        return list(knob.sizes or [knob.stage or knob.drives])

    def _check_drives(self, key: str, drives: str) -> None:
        is_afd, is_prefill = self.base.deployment.is_afd, self.base.workload.is_prefill
        fits = {
            "ratio": is_afd,
            "transport": is_afd,
            "micro_batches": is_afd or is_prefill,
            "chunk": is_prefill,
            "drafts": not is_prefill,
        }
        if not fits.get(drives, True):
            raise InputError(key, drives, "a knob of a schedule of this kind")

    def schedule(self, index: int, without: str | None = None) -> Schedule:
        """The candidate at ``index``; its rules are not checked yet.

        The knob ``without`` is not turned: what it drives is as in the base.

        Raises:
            InputError: the dies cannot be split in the chosen ratio.
        """
        choice = self.choice(index)
        total = int(cast(float, choice[DIES])) if DIES in choice else (*self.dies, None)[0]
        schedule = self.base if without == DIES else with_dies(self.base, total)
        for name, knob in self.knobs.items():
            if name == without:
                continue
            schedule = self._apply(schedule, knob, choice[name])
        return schedule

    def is_base(self, index: int) -> bool:
        """Whether the candidate at ``index`` is the base schedule, so simulated alike.

        The order of prefetches is free, and so is what they ask beyond the size of their weight.

        Raises:
            InputError: the dies cannot be split in the chosen ratio.
        """
        candidate, base = self.schedule(index), self.base
        same = replace(candidate, prefetch=base.prefetch) == base
        return same and self._prefetches(candidate) == self._prefetches(base)

    def _apply(self, schedule: Schedule, knob: Knob, level: Level) -> Schedule:
        if knob.drives == "transport":
            return with_transport(schedule, cast(Transport, level))
        if knob.drives == "ends_after":
            return with_stage_end(schedule, str(knob.stage), str(level))
        if knob.drives == "place":
            return self._with_place(schedule, knob, str(level))
        if not isinstance(level, str):
            return self._with_number(schedule, knob, level)
        raise AssertionError("the knob's levels were checked")

    def _with_number(self, schedule: Schedule, knob: Knob, level: float) -> Schedule:
        whole, stage = int(level), str(knob.stage)
        changes: dict[Drives, Callable[[], Schedule]] = {
            "ratio": lambda: with_ratio(schedule, whole),
            "micro_batches": lambda: with_micro_batches(schedule, whole),
            "batch": lambda: with_batch(schedule, whole),
            "drafts": lambda: with_drafts(schedule, whole),
            "chunk": lambda: replace(schedule, moe=replace(schedule.moe, chunk_tokens=whole)),
            "sizes": lambda: with_sizes(schedule, dict.fromkeys(knob.sizes or (), whole)),
            "super_kernel": lambda: schedule if whole else replace(schedule, super_kernel=()),
            "cores": lambda: with_core_split(schedule, stage, whole, self.hardware),
            "vector_cores": lambda: with_vector_split(schedule, stage, whole, self.hardware),
            "prefetch": lambda: self._with_prefetch(schedule, knob, level),
        }
        return changes[knob.drives]()

    def _with_prefetch(self, schedule: Schedule, knob: Knob, share: float) -> Schedule:
        """Set every weight of the knob to ``share`` of its size; 0 leaves it out.

        Weights that the role does not hold in this deployment have nothing to set.
        """
        deployment = schedule.deployment
        default = deployment.attention_role
        role = knob.role or default
        held = layer_weights(deployment, role)
        wanted = {w: op for w, op in (knob.weights or {}).items() if w.removeprefix(NEXT) in held}
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

    def _with_place(self, schedule: Schedule, knob: Knob, op: str) -> Schedule:
        """Issue the prefetches of the knob's weights, where there are any, after ``op``."""
        role = knob.role or schedule.deployment.attention_role
        after = present_op(schedule.deployment, role, op)
        moved = tuple(
            replace(p, after=after)
            if p.weight in (knob.weights or {})
            and (p.role or schedule.deployment.attention_role) == role
            else p
            for p in schedule.prefetch
        )
        return replace(schedule, prefetch=moved)

    def _share(self, schedule: Schedule, weight: str, share: float) -> int:
        size = weight_bytes(
            self.model,
            schedule.deployment,
            weight.removeprefix("next."),
            schedule.moe.redundant_experts,
        )
        return round(size * share)

    def _prefetches(self, schedule: Schedule) -> set[Prefetch]:
        """Its prefetches, each with the role that issues it and the bytes that it brings."""
        holder = schedule.deployment.attention_role
        return {
            replace(
                each,
                role=each.role or holder,
                bytes=min(each.bytes, self._share(schedule, each.weight, 1.0)),
            )
            for each in schedule.prefetch
        }
