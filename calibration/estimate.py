"""The estimate: parameters that agree with measurements and priors at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from calibration.kernel import KernelRow
from calibration.kernel_fit import correlation_of
from calibration.measurement import END_TO_END, Measurement
from calibration.predict import Setting, predict
from calibration.prior import Z80, Prior
from hardware_models.fitted import Correlation
from hardware_models.hardware import Hardware

Array = NDArray[np.float64]

# Relative noise granted to a row.  In-network op latencies of the die scatter by 1 to 4% for
# matmuls and more for others; end-to-end rows are means over many steps.
OP_NOISE = 0.03
END_TO_END_NOISE = 0.006
KERNEL_NOISE = 0.16

# A step of 1% of each parameter is well above the simulator's rounding and below its kinks.
_DIFFERENCE_STEP = 0.01
_MOST_EVALUATIONS = 30

# Two parameters are reported as one group when the data leave them this correlated.
DEGENERATE = 0.6


@dataclass(frozen=True, slots=True)
class Fitted:
    """One parameter after the fit.

    ``low`` .. ``high`` is its 80% interval inside the prior's range, ``standard_error`` in its
    own unit; ``learned`` the share of the prior's uncertainty that the data removed (0: the
    value is the prior's).
    """

    name: str
    prior: Prior
    value: float
    low: float
    high: float
    learned: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The outcome: parameters, the hardware with them put in, predictions per row."""

    hardware: Hardware
    parameters: tuple[Fitted, ...]
    predicted_us: tuple[float, ...]
    degenerate: tuple[tuple[str, str, float], ...]
    correlation: Correlation


def estimate(
    rows: Sequence[Measurement],
    settings: Sequence[Setting],
    hardware: Hardware,
    priors: Mapping[str, Prior],
    kernels: Sequence[KernelRow] = (),
    progress: Callable[[], None] = lambda: None,
) -> Estimate:
    """Least squares in log space with a robust loss on the rows and normal priors.

    ``kernels`` are rows of single kernels whose parameters the steps share.  Bounds are the
    priors' ranges.  Standard errors come from the Gauss-Newton Hessian at the optimum, priors
    included.  ``progress`` is called once an evaluation.
    """
    names = tuple(priors)
    centre = np.array([priors[n].centre for n in names])
    deviation = np.array([priors[n].deviation for n in names])
    low = np.array([priors[n].range[0] for n in names])
    high = np.array([priors[n].range[1] for n in names])
    measured = np.log([row.measured_us for row in rows])
    noise = np.array([END_TO_END_NOISE if r.kind == END_TO_END else OP_NOISE for r in rows])

    kernel_measured = np.log([row.measured_us for row in kernels])

    def at(point: Array) -> Hardware:
        return hardware.with_values(dict(zip(names, point.tolist(), strict=True)))

    def residuals(point: Array) -> Array:
        progress()
        die = at(point)
        misfit = (np.log(predict(rows, settings, die)) - measured) / noise
        alone = np.log([row.predicted_us(die) for row in kernels]) - kernel_measured
        return np.concatenate(
            [_soften(misfit), _soften(alone / KERNEL_NOISE), (point - centre) / deviation]
        )

    start = np.clip(centre, low + 1e-6 * deviation, high - 1e-6 * deviation)
    solution = least_squares(
        residuals,
        start,
        bounds=(low, high),
        x_scale=deviation,
        diff_step=_DIFFERENCE_STEP,
        max_nfev=_MOST_EVALUATIONS,
    )
    covariance = np.linalg.inv(solution.jac.T @ solution.jac)
    error = np.sqrt(np.diag(covariance))
    fitted = tuple(
        Fitted(
            name,
            priors[name],
            float(value),
            float(max(low[i], value - Z80 * error[i])),
            float(min(high[i], value + Z80 * error[i])),
            float(max(0.0, 1.0 - error[i] / deviation[i])),
            float(error[i]),
        )
        for i, (name, value) in enumerate(zip(names, solution.x, strict=True))
    )
    final = at(solution.x)
    return Estimate(
        hardware=final,
        parameters=fitted,
        predicted_us=tuple(predict(rows, settings, final)),
        degenerate=_degenerate(names, covariance, error),
        correlation=correlation_of(names, covariance),
    )


def _soften(misfit: Array) -> Array:
    """Soft-L1 as transformed residuals: beyond about one deviation a row pulls linearly.

    The priors stay quadratic, so the loss cannot be given to the solver as a whole.
    """
    return np.sign(misfit) * np.sqrt(2.0 * (np.sqrt(1.0 + misfit**2) - 1.0))


def _degenerate(
    names: Sequence[str], covariance: Array, error: Array
) -> tuple[tuple[str, str, float], ...]:
    correlation = covariance / np.outer(error, error)
    pairs = [
        (names[i], names[j], float(correlation[i, j]))
        for i in range(len(names))
        for j in range(i)
        if abs(correlation[i, j]) > DEGENERATE
    ]
    return tuple(sorted(pairs, key=lambda pair: -abs(pair[2])))
