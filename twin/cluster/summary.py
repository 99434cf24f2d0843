"""What a user asks of a cluster: the step over seeds, ranks, waits, gaps and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twin.cluster.run import ClusterSimulation, Sample
from twin.cluster.streams import BoundCounter, EventWait, GapCounter
from twin.cluster.waits import CollectiveWait, WaitCounter
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity over seeds; between two seeds quantiles are interpolated."""

    mean: float
    p50: float
    p90: float
    p99: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Mean and quantiles of ``values``."""
        p50, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99]).tolist()
        return Spread(mean=float(np.mean(values)), p50=p50, p90=p90, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """What falls on the ranks that hold experts in one layer: means over layers and seeds.

    ``tokens`` are token copies and ``active_experts`` the local experts that got any, for
    each rank; ``imbalance`` is the busiest rank's tokens over the mean of all ranks.
    """

    tokens: tuple[float, ...]
    active_experts: tuple[float, ...]
    imbalance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    """All seeds of one cluster; ``kv_tokens`` is the mean KV length of each attention die."""

    dies: int
    ops: int
    layers: int
    seeds: tuple[int, ...]
    steps_us: tuple[float, ...]
    step_us: Spread
    load: RankLoad
    kv_tokens: tuple[float, ...]
    waits: tuple[CollectiveWait, ...]
    event_waits: tuple[EventWait, ...]
    bounds: Mapping[str, Mapping[str, float]]


def summarise(
    simulation: ClusterSimulation,
    seeds: Sequence[int],
    options: EngineOptions = DEFAULT_OPTIONS,
    progress: Callable[[Sample], None] = lambda sample: None,
) -> ClusterSummary:
    """Run all ``seeds`` (at least one); ``progress`` hears of each sample.

    Raises:
        InputError: a file of the options is wrong.
        DeadlockError: collectives wait for each other.
    """
    cluster = simulation.cluster
    waits, gaps, bounds = WaitCounter(cluster), GapCounter(cluster), BoundCounter(cluster)
    steps: list[float] = []
    tokens: list[Floats] = []
    active: list[Floats] = []
    kv_tokens: list[Floats] = []
    imbalance: list[float] = []
    for seed in seeds:
        sample = simulation.run(seed, options)
        progress(sample)
        steps.append(sample.step_us)
        for counter in (waits, gaps, bounds):
            counter.add(sample.records)
        per_rank, per_active = _load(simulation, sample)
        tokens.append(per_rank.mean(axis=0))
        active.append(per_active.mean(axis=0))
        imbalance.append(float((per_rank.max(axis=1) / per_rank.mean(axis=1)).mean()))
        kv_tokens.append(sample.draw.kv_tokens.astype(np.float64))
    return ClusterSummary(
        dies=cluster.dies,
        ops=len(cluster.flat.arrays.ops),
        layers=len(cluster.template.period_marks),
        seeds=tuple(seeds),
        steps_us=tuple(steps),
        step_us=Spread.of(steps),
        load=RankLoad(
            tokens=tuple(np.mean(tokens, axis=0).tolist()),
            active_experts=tuple(np.mean(active, axis=0).tolist()),
            imbalance=float(np.mean(imbalance)),
        ),
        kv_tokens=tuple(np.mean(kv_tokens, axis=0).tolist()),
        waits=tuple(waits.waits()),
        event_waits=tuple(gaps.waits()),
        bounds=bounds.shares(),
    )


def _load(simulation: ClusterSimulation, sample: Sample) -> tuple[Floats, Floats]:
    """Tokens and active experts, [layer, rank]; micro-batches of a layer add up in tokens."""
    cluster, routing = simulation.cluster, sample.draw.routing
    shapes = cluster.shapes
    parts = shapes.micro_batches
    ranks = cluster.schedule.deployment.moe.dies
    if routing is None:
        tokens = sum(shapes.expert_rows(part) for part in parts)
        active = float(np.mean([shapes.active_experts(part) for part in parts]))
        return np.full((1, ranks), tokens), np.full((1, ranks), active)
    per_pass = (-1, len(parts), ranks)
    return (
        np.asarray(routing.per_rank.reshape(per_pass).sum(axis=1), np.float64),
        np.asarray(routing.active.reshape(per_pass).mean(axis=1), np.float64),
    )
