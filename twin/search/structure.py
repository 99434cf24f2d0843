"""Structures: the parts of a space whose candidates have the same ops and differ in numbers.

Knobs that change which ops there are, or how many dies, are fixed in a structure; the others
are its axes.  An axis is one knob, or the knobs that change the same ops.  Axes change
different ops, so one :class:`Plan` serves all candidates, and whether a level of an axis is
feasible does not depend on the levels of the others.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.engine.compiled.plan import Grid, Plan, Point
from twin.schedule import Schedule
from twin.search.feasible import Rejection, rejected, rejection
from twin.search.space import Space
from twin.workload import Workload

Places = Mapping[str, int]
"""A place in the levels of each of some knobs."""

_INNER = ("cores", "vector_cores", "prefetch")


@dataclass(frozen=True)
class Axis:
    """Knobs that change the same ops, and all combinations of their levels."""

    knobs: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]

    def places(self, level: int) -> Places:
        """The place of each of its knobs at a level of the axis."""
        return dict(zip(self.knobs, self.levels[level], strict=True))


def axes_of(space: Space) -> tuple[Axis, ...]:
    """The axes of every structure: core splits first, which decide most."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, knob in space.knobs.items():
        if knob.drives in _INNER:
            of_stage = knob.drives != "prefetch"
            key = ("", str(knob.stage)) if of_stage else ("prefetch", name)
            groups.setdefault(key, []).append(name)
    return tuple(
        Axis(tuple(names), tuple(itertools.product(*(range(len(space.levels[n])) for n in names))))
        for _, names in sorted(groups.items(), key=lambda item: item[0][0])
    )


def structural_places(space: Space) -> Iterator[Places]:
    """The places of the structural knobs of each structure, in the order of the space."""
    inner = {name for axis in axes_of(space) for name in axis.knobs}
    names = [name for name in space.levels if name not in inner]
    for places in itertools.product(*(range(len(space.levels[name])) for name in names)):
        yield dict(zip(names, places, strict=True))


def places_of(space: Space, index: int) -> tuple[dict[str, int], tuple[int, ...]]:
    """A candidate as the places that fix its structure and its level of each axis."""
    places = {}
    for name, each in reversed(space.levels.items()):
        index, places[name] = divmod(index, len(each))
    axes = axes_of(space)
    inner = {name for axis in axes for name in axis.knobs}
    fixed = {name: places[name] for name in space.levels if name not in inner}
    levels = (axis.levels.index(tuple(places[name] for name in axis.knobs)) for axis in axes)
    return fixed, tuple(levels)


@dataclass(frozen=True)
class Infeasible:
    """How many candidates of a structure are out, by reason, and which misses by the least."""

    counts: Mapping[str, int]
    nearest: Rejection | None


class Structure:
    """One structure of a space, made when first asked for what it needs."""

    def __init__(self, space: Space, fixed: Places) -> None:
        self.space, self.fixed = space, fixed
        self.axes = axes_of(space)
        self._points: dict[tuple[int, int], Point] = {}

    def index(self, levels: Sequence[int]) -> int:
        """The candidate's index in the space, from a level of each axis."""
        places = dict(self.fixed)
        for axis, level in zip(self.axes, levels, strict=True):
            places.update(axis.places(level))
        index = 0
        for name, each in self.space.levels.items():
            index = index * len(each) + places[name]
        return index

    def schedule(self, levels: Sequence[int]) -> Schedule:
        """The candidate at a level of each axis.

        Raises:
            InputError: the structural knobs cannot be applied to the base.
        """
        return self.space.schedule(self.index(levels))

    @property
    def size(self) -> int:
        """Candidates, infeasible ones included."""
        return math.prod(len(axis.levels) for axis in self.axes)

    def _rejection(self, levels: Sequence[int]) -> Rejection | None:
        try:
            schedule = self.schedule(levels)
        except InputError as error:
            return rejected(error)
        return rejection(schedule, self.space.model, self.space.hardware)

    @cached_property
    def _reference(self) -> tuple[tuple[int, ...] | None, Infeasible]:
        """A feasible candidate, or ``None`` and why there is none.

        A rule that one axis breaks is kept by another level of that axis, whatever the other
        axes are: so one rule after the other is mended.  One that no axis mends holds for all.
        """
        at = [0] * len(self.axes)
        reason = self._rejection(at)
        broken: set[str] = set()
        while reason is not None and reason.reason not in broken:
            broken.add(reason.reason)
            for axis, level in self._changes():
                other = [*at[:axis], level, *at[axis + 1 :]]
                after = self._rejection(other)
                if after is None or after.reason not in broken:
                    at, reason = other, after
                    break
        if reason is None:
            return tuple(at), Infeasible({}, None)
        return None, Infeasible({reason.reason: self.size}, reason)

    def _changes(self) -> Iterator[tuple[int, int]]:
        for axis, each in enumerate(self.axes):
            for level in range(len(each.levels)):
                yield axis, level

    @cached_property
    def verdicts(self) -> tuple[tuple[Rejection | None, ...], ...]:
        """For each axis and level: why it is out, the other axes being feasible."""
        reference, _ = self._reference
        if reference is None:
            return ()
        return tuple(
            tuple(
                self._rejection([*reference[:at], level, *reference[at + 1 :]])
                for level in range(len(axis.levels))
            )
            for at, axis in enumerate(self.axes)
        )

    @cached_property
    def allowed(self) -> list[list[int]]:
        """The feasible levels of each axis; nothing where no candidate is feasible."""
        return [
            [level for level, reason in enumerate(line) if reason is None] for line in self.verdicts
        ]

    @property
    def is_feasible(self) -> bool:
        """Whether any candidate is."""
        return self._reference[0] is not None

    @cached_property
    def infeasible(self) -> Infeasible:
        """Candidates that are out, each counted once, under its first axis that is out."""
        reference, nothing = self._reference
        if reference is None:
            return nothing
        counts: Counter[str] = Counter()
        reasons: list[Rejection] = []
        for at, line in enumerate(self.verdicts):
            rest = math.prod(len(axis.levels) for axis in self.axes[at + 1 :])
            before = math.prod(len(levels) for levels in self.allowed[:at])
            for reason in line:
                if reason is not None:
                    counts[reason.reason] += before * rest
                    reasons.append(reason)
        nearest = min(reasons, key=lambda reason: (reason.excess, reason.detail), default=None)
        return Infeasible(dict(counts), nearest)

    @cached_property
    def plan_levels(self) -> tuple[int, ...]:
        """The candidate that the plan is built for: the most of every prefetch, so all ops."""
        reference, _ = self._reference
        assert reference is not None, "a structure without candidates has no plan"
        return tuple(
            level if self._is_cores(axis) else max(allowed, key=lambda at: self._share(axis, at))
            for axis, level, allowed in zip(self.axes, reference, self.allowed, strict=True)
        )

    @cached_property
    def workload(self) -> Workload:
        """The workload of all candidates: no axis changes it."""
        return self.schedule(self.plan_levels).workload

    def _is_cores(self, axis: Axis) -> bool:
        return self.space.knobs[axis.knobs[0]].drives != "prefetch"

    def _share(self, axis: Axis, level: int) -> float:
        (name,) = axis.knobs
        share = self.space.levels[name][axis.levels[level][0]]
        assert not isinstance(share, str), "shares are numbers"
        return share

    @cached_property
    def plan(self) -> Plan:
        """The plan of all candidates."""
        return Plan(self.schedule(self.plan_levels), self.space.model, self.space.hardware)

    @cached_property
    def grid(self) -> Grid:
        """All candidates; a place in an axis is a place in its ``allowed`` levels."""
        return self._grid(self.plan, self.allowed, self._point)

    @cached_property
    def outline(self) -> Grid:
        """As :attr:`grid`, of prefetches only the largest: enough for a bound on all."""
        return self._grid(
            self.plan,
            [
                allowed if self._is_cores(axis) else [self.plan_levels[at]]
                for at, (axis, allowed) in enumerate(zip(self.axes, self.allowed, strict=True))
            ],
            self._point,
        )

    def run_on(self, hardware: Hardware, lines: Sequence[Sequence[int]]) -> list[float]:
        """Step in us on another die of each of ``lines`` (a level of each axis), NaN if stuck."""
        plan = Plan(self.schedule(self.plan_levels), self.space.model, hardware)
        levels = [sorted(set(each)) for each in zip(*lines, strict=True)]
        at = [
            [each.index(level) for each, level in zip(levels, line, strict=True)] for line in lines
        ]
        candidates = np.array(at, np.int64).reshape(len(lines), len(self.axes))
        grid = self._grid(plan, levels, lambda at, level: self._changed(plan, at, level))
        return [float(us) for us in grid.evaluate(candidates).step_us]

    def _grid(
        self,
        plan: Plan,
        levels: Sequence[Sequence[int]],
        point: Callable[[int, int], Point],
    ) -> Grid:
        return plan.combined(
            {
                "+".join(axis.knobs): [point(at, level) for level in each]
                for at, (axis, each) in enumerate(zip(self.axes, levels, strict=True))
            }
        )

    def _point(self, at: int, level: int) -> Point:
        """What a level of an axis changes in the plan; the outline and the grid share it."""
        if (at, level) not in self._points:
            self._points[at, level] = self._changed(self.plan, at, level)
        return self._points[at, level]

    def _changed(self, plan: Plan, at: int, level: int) -> Point:
        levels = self.plan_levels
        return plan.point_of(self.schedule([*levels[:at], level, *levels[at + 1 :]]))
