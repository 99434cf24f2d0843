"""Branch and bound over the axes of one structure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.evaluate import latency_of
from twin.search.structure import Structure

# Sets of so few candidates are simulated, all at once, rather than cut up and bounded again.
_BATCH = 256
_ROUNDS = 2

Levels = list[list[int]]
"""For each axis, places among its feasible levels."""


@dataclass(frozen=True)
class Found:
    """What an exploration says of its candidates, all of them feasible.

    ``points`` are (index, latency in us) of those within the tolerance of the best seen, and
    ``best_by_level`` the best simulated one with each level of each axis.  ``pruned`` were not
    simulated: no one of them is within the tolerance of the best.  ``open`` were not reached
    before the budget was spent; none of them is faster than ``open_bound_us``.
    ``deadlocked`` cannot finish.
    """

    points: tuple[tuple[int, float], ...]
    best_by_level: tuple[tuple[int, float], ...]
    simulated: int
    pruned: int
    open: int
    open_bound_us: float
    deadlocked: int


def descend(
    structure: Structure, options: EngineOptions = DEFAULT_OPTIONS
) -> tuple[float, int | None]:
    """Latency in us and index of a good candidate: the best level of one axis after the other.

    Infinite and none where all are stuck.
    """
    sizes = [len(allowed) for allowed in structure.allowed]
    grid = structure.grid
    best_us, best = math.inf, None
    at = [
        allowed.index(level)
        for allowed, level in zip(structure.allowed, structure.plan_levels, strict=True)
    ]
    for _ in range(_ROUNDS):
        for axis, size in enumerate(sizes):
            tried = np.array([[*at[:axis], level, *at[axis + 1 :]] for level in range(size)])
            step_us = grid.evaluate(tried, options).step_us
            if not np.isnan(step_us).all():
                at[axis] = int(np.nanargmin(step_us))
                if float(np.nanmin(step_us)) < best_us:
                    best_us, best = float(np.nanmin(step_us)), index_at(structure, at)
    return _latency(structure, best_us), best


def index_at(structure: Structure, places: Sequence[int]) -> int:
    """The index of the candidate at a place among the feasible levels of each axis."""
    levels = [each[at] for each, at in zip(structure.allowed, places, strict=True)]
    return structure.index(levels)


def root_bound_us(structure: Structure, options: EngineOptions = DEFAULT_OPTIONS) -> float:
    """No candidate of the structure has a shorter latency than this, in us."""
    outline = structure.outline
    bound_us = outline.bound(options).us([range(size) for size in outline.sizes])
    return _latency(structure, bound_us)


def _combinations(levels: Levels) -> npt.NDArray[np.int64]:
    lines = list(itertools.product(*levels))
    return np.array(lines, np.int64).reshape(len(lines), len(levels))


def _latency(structure: Structure, step_us: float) -> float:
    return latency_of(structure.workload, step_us)


def explore(
    structure: Structure,
    levels: Levels,
    cutoff_us: float,
    tolerance: float,
    budget: int,
    options: EngineOptions = DEFAULT_OPTIONS,
) -> Found:
    """All candidates with ``levels``: simulated, or proven to be out of the tolerance.

    ``cutoff_us`` is the latency of a schedule that is known; candidates are out when they are
    above it, or above the best found here, by more than ``tolerance``.  After ``budget``
    simulations the rest stays open.
    """
    cutoff_step_us = cutoff_us / _latency(structure, 1.0)
    run = _Exploration(structure, cutoff_step_us, tolerance, budget, options)
    run.visit(levels)
    return run.found()


@dataclass
class _Exploration:
    """The state of one exploration; times are steps in us."""

    structure: Structure
    best_us: float
    tolerance: float
    budget: int
    options: EngineOptions
    simulated: int = 0
    pruned: int = 0
    open: int = 0
    open_bound_us: float = math.inf
    deadlocked: int = 0
    kept: list[tuple[int, float]] = field(default_factory=list)
    by_level: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bound = self.structure.grid.bound(self.options)

    def visit(self, levels: Levels, bound_us: float | None = None) -> None:
        """Simulate the set, or cut it up along its first axis that has several levels."""
        bound_us = self.bound.us(levels) if bound_us is None else bound_us
        count = math.prod(len(each) for each in levels)
        if bound_us > self.best_us * (1 + self.tolerance):
            self.pruned += count
            return
        if self.simulated >= self.budget:
            self.open += count
            self.open_bound_us = min(self.open_bound_us, bound_us)
            return
        if count <= _BATCH:
            self._simulate(levels)
            return
        axis = next(at for at, each in enumerate(levels) if len(each) > 1)
        parts = [[*levels[:axis], [level], *levels[axis + 1 :]] for level in levels[axis]]
        bounds = [self.bound.us(part) for part in parts]
        for at in sorted(range(len(parts)), key=lambda at: (bounds[at], at)):
            self.visit(parts[at], bounds[at])

    def _simulate(self, levels: Levels) -> None:
        candidates = _combinations(levels)
        step_us = self.structure.grid.evaluate(candidates, self.options).step_us
        self.simulated += len(step_us)
        if len(step_us):
            self.best_us = min(self.best_us, float(np.fmin.reduce(step_us)))
        limit_us = self.best_us * (1 + self.tolerance)
        for line, us in zip(candidates.tolist(), step_us.tolist(), strict=True):
            if math.isnan(us):
                self.deadlocked += 1
                continue
            if us <= limit_us:
                self.kept.append((index_at(self.structure, line), us))
            for key in enumerate(line):
                if us < self.by_level.get(key, (math.inf, 0))[0]:
                    self.by_level[key] = (us, index_at(self.structure, line))

    def found(self) -> Found:
        limit_us = self.best_us * (1 + self.tolerance)
        seen = {index: us for us, index in self.by_level.values()}
        return Found(
            points=tuple(
                (index, _latency(self.structure, us))
                for index, us in sorted(self.kept)
                if us <= limit_us
            ),
            best_by_level=tuple(
                (index, _latency(self.structure, us)) for index, us in sorted(seen.items())
            ),
            simulated=self.simulated,
            pruned=self.pruned,
            open=self.open,
            open_bound_us=_latency(self.structure, self.open_bound_us),
            deadlocked=self.deadlocked,
        )
