"""Robustness: the ties ranked by how slow they may get.

Parameters: every tie is run on the same draws of the die.  Skew: a cluster of all dies draws
which experts tokens take and how long heads are, for a few seeds; a layer is enough to see how
much that costs, so few are run.  The 90% quantile over all pairs of a draw and a seed ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.cluster.options import ClusterOptions, ExpertLoad, Jitter
from twin.cluster.run import ClusterSimulation
from twin.evaluate import latency_of
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.search.pool import Workers
from twin.search.space import Space
from twin.search.structure import Structure, places_of

Floats = npt.NDArray[np.float64]

QUANTILE = 0.9
RANKED_TIES = 512
"""How many ties are ranked at most, the fastest first."""
SKEW_SEEDS = (0, 1)
_SKEWED = ClusterOptions(load=ExpertLoad(kind="uniform"))
_EVEN = ClusterOptions(jitter=Jitter(matmul=0.0, other=0.0))
# Steady behind the second layer; a cluster of all layers takes seconds a seed.
_LAYERS = 4


@dataclass(frozen=True, slots=True)
class Ranked:
    """A tie: its index, its slow end in us, and how much skew costs it on average (a share).

    ``skew`` is ``None`` where only the parameters' draws are in ``p90_us``.
    """

    index: int
    p90_us: float
    skew: float | None


def rank_ties(
    space: Space, ties: Sequence[int], variants: Sequence[Hardware], top: int, workers: Workers
) -> list[Ranked]:
    """The ``top`` most robust of ``ties``, most robust first; equal ones in their order.

    The first of ``ties``, the fastest, is always among them, unless there is but one.
    All ties are ranked by the draws ``variants`` alone first; skew then decides among the
    first ``top``, where all of them have a cluster (prefill has none).
    """
    drawn = np.array(list(workers.map(TieRun(space, tuple(ties)), variants)))
    p90_us = np.quantile(drawn, QUANTILE, axis=0)
    first = sorted(range(len(ties)), key=lambda at: (p90_us[at], at))[:top]
    if 0 not in first and top > 1:
        first[-1] = 0
    runs = SkewRun(space.model, space.hardware)
    skews = list(workers.map(runs, [space.schedule(ties[at]) for at in first]))
    if any(factors is None for factors in skews):
        # Quantiles with and without skew do not compare.
        return [Ranked(ties[at], float(p90_us[at]), None) for at in first]
    ranked = [
        Ranked(
            ties[at],
            float(np.quantile(np.outer(drawn[:, at], factors), QUANTILE)),
            float(np.mean(factors)) - 1,
        )
        for at, factors in zip(first, skews, strict=True)
        if factors is not None
    ]
    return sorted(ranked, key=lambda each: each.p90_us)


@dataclass(frozen=True)
class TieRun:
    """The latencies in us of some candidates of a space on one variant of the die."""

    space: Space
    indices: tuple[int, ...]

    def __call__(self, hardware: Hardware) -> list[float]:
        """One latency for each index; a candidate that cannot finish takes forever."""
        groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for place, index in enumerate(self.indices):
            fixed, _ = places_of(self.space, index)
            groups.setdefault(tuple(fixed.items()), []).append(place)
        found = [np.inf] * len(self.indices)
        for fixed_items, places in groups.items():
            structure = Structure(self.space, dict(fixed_items))
            lines = [places_of(self.space, self.indices[place])[1] for place in places]
            for place, us in zip(places, structure.run_on(hardware, lines), strict=True):
                found[place] = float(np.nan_to_num(latency_of(structure.workload, us), nan=np.inf))
        return found


@dataclass(frozen=True)
class SkewRun:
    """Skewed over even steps of a schedule on a cluster of all its dies."""

    model: ModelSpec
    hardware: Hardware

    def __call__(self, schedule: Schedule) -> tuple[float, ...] | None:
        """The factor for each of :data:`SKEW_SEEDS`, or ``None`` where no cluster simulates it."""
        if schedule.workload.is_prefill:
            return None
        layers = min(_LAYERS, self.model.num_layers)
        try:
            even, skewed = (
                ClusterSimulation(schedule, self.model, self.hardware, options, layers=layers)
                for options in (_EVEN, _SKEWED)
            )
        except InputError:
            return None
        even_us = even.run(0).step_us
        return tuple(skewed.run(seed).step_us / even_us for seed in SKEW_SEEDS)
