"""From evaluated points to an answer: the tie set, its knob ranges, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twin.choices import Level
from twin.search.space import Space
from twin.search.sweep import Point


@dataclass(frozen=True, slots=True)
class Answer:
    """What a sweep says.

    ``ties`` are the indices within the tolerance of the best, best first; ``tie_ranges``
    the levels of every knob that occur among them; ``pareto`` the indices that no other
    beats in both latency and throughput per die, by rising latency.
    """

    ties: tuple[int, ...]
    tie_ranges: dict[str, list[Level]]
    pareto: tuple[int, ...]


def answer(space: Space, points: Sequence[Point], tie_tolerance: float) -> Answer:
    """Rank the points; ties in latency are broken by index, so that the answer repeats."""
    ranked = sorted(points, key=lambda point: (point.latency_us, point.index))
    limit = ranked[0].latency_us * (1 + tie_tolerance) if ranked else 0.0
    ties = tuple(point.index for point in ranked if point.latency_us <= limit)
    return Answer(ties=ties, tie_ranges=_ranges(space, ties), pareto=_pareto(ranked))


def _ranges(space: Space, indices: Sequence[int]) -> dict[str, list[Level]]:
    choices = [space.choice(index) for index in indices]
    return {
        name: sorted({choice[name] for choice in choices})
        for name in (space.levels if choices else ())
    }


def _pareto(ranked: Sequence[Point]) -> tuple[int, ...]:
    front: list[int] = []
    most = 0.0
    for point in ranked:
        # A gain below rounding is no trade-off.
        if point.tokens_per_s_per_die > most * (1 + 1e-9):
            front.append(point.index)
            most = point.tokens_per_s_per_die
    return tuple(front)
