"""Intervals: how far a prediction moves when the parameters move within their ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from hardware_models.fitted import Correlation
from hardware_models.hardware import Hardware
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.evaluate import Spread, latencies
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

Array = NDArray[np.float64]

DRAWS = 32
"""Draws of all parameters at once: 16 moved an end of the interval by 3%."""

# The share of draws between the ends of the interval that the twin prints.
COVERAGE = 0.8

SERVING = "serving_"
"""Start of the names of parameters that no step reads."""

_LOW, _HIGH = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2


def draw_hardware(hardware: Hardware, draws: int = DRAWS, seed: int = 0) -> list[Hardware]:
    """``draws`` variants of the die from a Latin hypercube over all parameter ranges.

    Each parameter is spread piecewise evenly: half of the draws between ``low`` and the
    value, half between the value and ``high``, so that the value stays the median.  Counts of
    things (ranges of zero width) never move, nor does what only :mod:`twin.serving` reads.
    Parameters that the file says were fitted together are drawn together, with the fit's
    correlations: what the data cannot tell apart then cancels in what the data do pin down.
    """
    moving = [
        p
        for p in hardware
        if p.low < p.high and p.unit != "cores" and not p.name.startswith(SERVING)
    ]
    if not moving:
        return [hardware] * draws
    sampler = qmc.LatinHypercube(d=len(moving), rng=np.random.default_rng(seed))
    points = _correlated(sampler.random(draws), [p.name for p in moving], hardware.correlations)
    variants = []
    for point in points:
        values = {
            p.name: p.low + 2 * u * (p.value - p.low)
            if u < 0.5
            else p.value + (2 * u - 1) * (p.high - p.value)
            for p, u in zip(moving, point.tolist(), strict=True)
        }
        variants.append(hardware.with_values(values))
    return variants


def _correlated(points: Array, names: Sequence[str], groups: Sequence[Correlation]) -> Array:
    """Independent points of the unit cube with the groups' correlations put in.

    A Gaussian copula: each column stays evenly spread over 0 to 1.
    """
    column = {name: i for i, name in enumerate(names)}
    drawn = points.copy()
    for group in groups:
        moving = [i for i, name in enumerate(group.parameters) if name in column]
        if not moving:
            continue
        columns = [column[group.parameters[i]] for i in moving]
        # Rounding may leave tiny negative eigenvalues: they are taken as none.
        sizes, vectors = np.linalg.eigh(np.array(group.matrix())[np.ix_(moving, moving)])
        root = vectors * np.sqrt(np.maximum(sizes, 0.0))
        root /= np.sqrt((root**2).sum(axis=1, keepdims=True))
        drawn[:, columns] = ndtr(ndtri(points[:, columns]) @ root.T)
    return drawn


def latency_spread(
    schedule: Schedule,
    model: ModelSpec,
    variants: Sequence[Hardware],
    options: EngineOptions = DEFAULT_OPTIONS,
) -> Spread:
    """80% interval and median of the TPOT (TTFT in prefill) over variants of the hardware."""
    return Spread(*quantiles(latencies(schedule, model, variants, options)))


def quantiles(drawn: Sequence[float] | Array) -> tuple[float, float, float]:
    """The ends between which :data:`COVERAGE` of the draws lie, their median in the middle."""
    low, median, high = np.quantile(drawn, [_LOW, 0.5, _HIGH])
    return float(low), float(median), float(high)
