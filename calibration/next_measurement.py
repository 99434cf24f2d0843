"""Which one kernel, if it were measured, would sharpen the prediction of a step most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.kernel import kind_of, spec_text
from calibration.kernel_fit import NOISE
from calibration.limits import clipped
from calibration.prior import Z80
from calibration.profile_fit import IN_PROFILES
from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops.alone import alone_us

Array = NDArray[np.float64]

_STEP = 0.01


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel of the step that could be measured.

    ``interval_us`` is the 80% interval of its time; ``before_us`` and ``after_us`` are half the
    width of the 80% interval of all kernels' time in the step, without and with it.
    """

    kind: str
    kernel: str
    predicted_us: float
    interval_us: tuple[float, float]
    before_us: float
    after_us: float


def rank_candidates(
    specs: Sequence[OpSpec], hardware: Hardware, names: Sequence[str], covariance: Array
) -> list[Candidate]:
    """Kernels of a step, the one that would sharpen it most first.

    ``names`` and ``covariance`` are those of the logs of the parameters.  To first order in
    them, a measurement with the noise of a kernel row takes (cov(step, ln t))^2 /
    (var(ln t) + noise^2) from the variance of the kernels' time.
    """
    counts = Counter(spec for spec in specs if kind_of(spec) in IN_PROFILES)
    index = {name: i for i, name in enumerate(names)}
    times = {spec: alone_us(spec, hardware) for spec in counts}
    slopes = {spec: _slope(spec, hardware, index) for spec in counts}
    step = sum((counts[spec] * times[spec] * slopes[spec] for spec in counts), np.zeros(len(names)))
    variance = float(step @ covariance @ step)
    found = []
    for spec in counts:
        own = float(slopes[spec] @ covariance @ slopes[spec])
        shared = float(step @ covariance @ slopes[spec])
        left = max(0.0, variance - shared**2 / (own + NOISE**2))
        width = math.exp(Z80 * math.sqrt(max(0.0, own)))
        found.append(
            Candidate(
                kind=kind_of(spec),
                kernel=spec_text((spec,)),
                predicted_us=times[spec],
                interval_us=(times[spec] / width, times[spec] * width),
                before_us=Z80 * math.sqrt(max(0.0, variance)),
                after_us=Z80 * math.sqrt(left),
            )
        )
    return sorted(found, key=lambda c: (c.after_us, c.kernel))


def _slope(spec: OpSpec, hardware: Hardware, index: Mapping[str, int]) -> Array:
    """Derivative of the log of a kernel's time by the logs of its parameters."""
    slope = np.zeros(len(index))
    for name in IN_PROFILES[kind_of(spec)]:
        if name in index:
            # At a limit, such as an efficiency of 1, the step goes one way only.
            ends = [clipped(name, hardware[name] * factor) for factor in (1 + _STEP, 1 - _STEP)]
            up, down = (alone_us(spec, hardware.with_values({name: end})) for end in ends)
            slope[index[name]] = math.log(up / down) / math.log(ends[0] / ends[1])
    return slope
