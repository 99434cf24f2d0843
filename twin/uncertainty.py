"""Intervals: how far a prediction moves when the parameters move within their ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import qmc

from hardware_models.hardware import Hardware
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.evaluate import Spread, latencies
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

DRAWS = 32
"""Draws of all parameters at once: 16 moved an end of the interval by 3%."""

# The share of draws between the ends of the interval that the twin prints.
COVERAGE = 0.8

_LOW, _HIGH = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2


def draw_hardware(hardware: Hardware, draws: int = DRAWS, seed: int = 0) -> list[Hardware]:
    """``draws`` variants of the die from a Latin hypercube over all parameter ranges.

    Each parameter is spread piecewise evenly: half of the draws between ``low`` and the
    value, half between the value and ``high``, so that the value stays the median.  Counts of
    things (ranges of zero width) never move.
    """
    moving = [p for p in hardware if p.low < p.high and p.unit != "cores"]
    if not moving:
        return [hardware] * draws
    sampler = qmc.LatinHypercube(d=len(moving), rng=np.random.default_rng(seed))
    variants = []
    for point in sampler.random(draws):
        values = {
            p.name: p.low + 2 * u * (p.value - p.low)
            if u < 0.5
            else p.value + (2 * u - 1) * (p.high - p.value)
            for p, u in zip(moving, point.tolist(), strict=True)
        }
        variants.append(hardware.with_values(values))
    return variants


def latency_spread(
    schedule: Schedule,
    model: ModelSpec,
    variants: Sequence[Hardware],
    options: EngineOptions = DEFAULT_OPTIONS,
) -> Spread:
    """80% interval and median of the TPOT (TTFT in prefill) over variants of the hardware."""
    found = latencies(schedule, model, variants, options)
    low, median, high = np.quantile(found, [_LOW, 0.5, _HIGH])
    return Spread(float(low), float(median), float(high))
