"""The fastest schedule of a small space, proven by branch and bound, in this process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from twin.choices import Level
from twin.evaluate import latency_of
from twin.schedule import Schedule
from twin.search.explore import descend, explore, root_bound_us
from twin.search.feasible import Rejection
from twin.search.space import Space
from twin.search.structure import Structure, structural_places
from twin.search.sweep import DEADLOCK

# Keeps a candidate whose bound is its own latency to rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest schedule of a space (ties: the first in its order) and its knob levels."""

    schedule: Schedule
    latency_us: float
    choice: Mapping[str, Level]


def fastest(space: Space) -> Best | Rejection:
    """The fastest schedule of ``space``, or which constraint its nearest candidate breaks."""
    return fastest_of([Structure(space, fixed) for fixed in structural_places(space)])


def fastest_of(structures: Iterable[Structure]) -> Best | Rejection:
    """As :func:`fastest`, over some structures of a space; no candidate is left open."""
    every = list(structures)
    feasible = [it for it in every if it.is_feasible]
    # One alone is explored whatever its bound.
    bounds = {id(it): root_bound_us(it) if len(feasible) > 1 else 0.0 for it in feasible}
    feasible.sort(key=lambda it: bounds[id(it)])
    cutoff_us = min((descend(it)[0] for it in feasible[:1]), default=math.inf)
    best: tuple[float, int, Structure] | None = None
    for it in feasible:
        if bounds[id(it)] > cutoff_us * (1 + _ROUNDING):
            continue
        for index, us in _explored(it, cutoff_us):
            if best is None or (us, index) < best[:2]:
                best = (us, index, it)
                cutoff_us = min(cutoff_us, us)
    if best is None:
        return nearest([_why(it) for it in every])
    us, index, it = best
    return Best(it.space.schedule(index), us, it.space.choice(index))


def is_within(structure: Structure, limit_us: float) -> bool:
    """Whether any schedule of a feasible structure has a latency of at most ``limit_us``."""
    # The cheapest answers first: one candidate, then a bound on all.
    if _planned_us(structure) <= limit_us:
        return True
    if root_bound_us(structure) > limit_us:
        return False
    if descend(structure)[0] <= limit_us:
        return True
    return any(us <= limit_us for _, us in _explored(structure, limit_us))


def nearest(rejections: Iterable[Rejection]) -> Rejection:
    """The rejection that misses by the least."""
    return min(rejections, key=lambda it: (it.excess, it.detail))


def _planned_us(structure: Structure) -> float:
    """Latency of the candidate that the structure's plan is built for; NaN in a deadlock."""
    plan = structure.plan
    workload = structure.schedule(structure.plan_levels).workload
    return latency_of(workload, float(plan.evaluate([plan.point]).step_us[0]))


def _explored(structure: Structure, cutoff_us: float) -> tuple[tuple[int, float], ...]:
    levels = [list(range(len(each))) for each in structure.allowed]
    return explore(structure, levels, cutoff_us, _ROUNDING, structure.size).points


def _why(structure: Structure) -> Rejection:
    reason = None if structure.is_feasible else structure.infeasible.nearest
    # What is feasible and yet has no latency cannot finish.
    return reason or Rejection(DEADLOCK, DEADLOCK, 1.0)
