"""Fit of kernel parameters, kind by kind, and what it is worth on rows that were left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from calibration.kernel import KernelRow
from calibration.kinds import PARAMETERS
from calibration.limits import clipped
from calibration.prior import Z80, Prior
from calibration.roofline import ideal
from hardware_models.fitted import Correlation
from hardware_models.hardware import Hardware
from hardware_models.shapes import numbers

Array = NDArray[np.float64]

# Relative noise of a kernel row: the scatter that remains beside the best forms.
NOISE = 0.12

# No parameter leaves its prior range by more than this factor.
_BEYOND = 2.0
_MOST_EVALUATIONS = 60
_OFFSET = 10.0

# A handful of rows that happen to agree does not make a kind that certain.
_FEW_ROWS = 6
_LEAST_SPREAD = 0.15
_DIFFERENCE_STEP = 1e-3
DEGENERATE = 0.9


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """One fitted parameter: value, 80% interval, and share of the prior's width removed.

    ``standard_error`` is that of the value's logarithm.
    """

    name: str
    value: float
    low: float
    high: float
    learned: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class KindFit:
    """The fit of one kind on one die.

    Errors are predicted over measured, less one.  ``spread`` is half the width, in log
    space, of the 80% interval of a prediction, from left-out rows.
    """

    hardware: str
    kind: str
    rows: tuple[KernelRow, ...]
    parameters: tuple[KernelParameter, ...]
    in_sample: tuple[float, ...]
    left_out: tuple[float, ...]
    grouped: tuple[float, ...]
    roofline: tuple[float, ...]
    neighbour: tuple[float, ...]
    spread: float
    coverage: float | None
    degenerate: tuple[tuple[str, str, float], ...]
    correlation: Correlation


def solve(
    rows: Sequence[KernelRow],
    hardware: Hardware,
    priors: Mapping[str, Prior],
    start: Mapping[str, float] | None = None,
) -> tuple[dict[str, float], Array]:
    """Least squares in log space with soft-L1 loss on the rows and log-normal priors.

    Returns:
        The parameters' values, and the covariance of their logarithms.
    """
    names = tuple(priors)
    centre = np.log([priors[n].centre for n in names])
    deviation = np.array([_log_deviation(priors[n]) for n in names])
    # The solver sees (ln value - centre) / deviation + _OFFSET: its difference steps are
    # relative, so the origin has to lie far from where it searches.
    limits = (np.array([_bounds(n, priors[n]) for n in names]).T - centre) / deviation + _OFFSET
    measured = np.log([row.measured_us for row in rows])

    def values_at(point: Array) -> dict[str, float]:
        logs = centre + (point - _OFFSET) * deviation
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    def residuals(point: Array) -> Array:
        die = hardware.with_values(values_at(point))
        misfit = (np.log([row.predicted_us(die) for row in rows]) - measured) / NOISE
        soft = np.sign(misfit) * np.sqrt(2.0 * (np.sqrt(1.0 + misfit**2) - 1.0))
        return np.concatenate([soft, point - _OFFSET])

    logs = np.log([(start or {}).get(n, priors[n].centre) for n in names])
    first = np.clip((logs - centre) / deviation + _OFFSET, limits[0] + 1e-6, limits[1] - 1e-6)
    solution = least_squares(
        residuals,
        first,
        bounds=(limits[0], limits[1]),
        diff_step=_DIFFERENCE_STEP,
        max_nfev=_MOST_EVALUATIONS,
    )
    covariance = np.linalg.inv(solution.jac.T @ solution.jac) * np.outer(deviation, deviation)
    return values_at(solution.x), covariance


def _log_deviation(prior: Prior) -> float:
    low, high = prior.range
    return math.log(high / low) / (2 * Z80)


def _bounds(name: str, prior: Prior) -> tuple[float, float]:
    low = clipped(name, prior.range[0] / _BEYOND)
    high = clipped(name, prior.range[1] * _BEYOND)
    return math.log(low), math.log(high)


def fit_kind(
    kind: str, rows: Sequence[KernelRow], hardware: Hardware, priors: Mapping[str, Prior]
) -> KindFit:
    """Fit one kind's parameters to its rows, and predict each row from the others."""
    own = {n: priors[n] for n in PARAMETERS.get(kind, ()) if n in priors}
    if own:
        values, covariance = solve(rows, hardware, own)
    else:
        values, covariance = {}, np.zeros((0, 0))
    fitted = hardware.with_values(values)

    def without(keep: Callable[[int], bool], target: int) -> float:
        kept = [row for j, row in enumerate(rows) if keep(j)]
        die = hardware.with_values(solve(kept, hardware, own, values)[0]) if own else fitted
        return _error(rows[target].predicted_us(die), rows[target])

    families = [_family(row) for row in rows]
    indices = range(len(rows))
    left_out = tuple(without(lambda j, i=i: j != i, i) for i in indices)  # type: ignore[misc]
    grouped = tuple(
        without(lambda j, i=i: families[j] != families[i], i)  # type: ignore[misc]
        for i in indices
    )
    spread, coverage = spread_of(left_out)
    return KindFit(
        hardware=hardware.name,
        kind=kind,
        rows=tuple(rows),
        parameters=_parameters(own, values, covariance),
        in_sample=tuple(_error(row.predicted_us(fitted), row) for row in rows),
        left_out=left_out,
        grouped=grouped,
        roofline=_roofline(rows, hardware),
        neighbour=_neighbour(rows),
        spread=spread,
        coverage=coverage,
        degenerate=_degenerate(tuple(own), covariance),
        correlation=correlation_of(tuple(own), covariance),
    )


def _error(predicted_us: float, row: KernelRow) -> float:
    return predicted_us / row.measured_us - 1.0


def _family(row: KernelRow) -> object:
    """What a grouped left-out fit leaves out together: a scenario, or all rows of one shape."""
    if row.place == "in_network":
        return row.setting.partition(" in ")[2]
    size = numbers(row.specs[-1])
    return tuple(
        size.get(name)
        for name in ("k", "n", "width", "element_bytes", "heads", "kv_tokens", "group")
    )


def _parameters(
    priors: Mapping[str, Prior], values: Mapping[str, float], covariance: Array
) -> tuple[KernelParameter, ...]:
    fitted = []
    for i, (name, prior) in enumerate(priors.items()):
        error, value = math.sqrt(covariance[i, i]), values[name]
        low, high = (math.exp(x) for x in _bounds(name, prior))
        fitted.append(
            KernelParameter(
                name,
                value,
                max(low, value * math.exp(-Z80 * error)),
                min(high, value * math.exp(Z80 * error)),
                max(0.0, 1.0 - error / _log_deviation(prior)),
                error,
            )
        )
    return tuple(fitted)


def _degenerate(names: tuple[str, ...], covariance: Array) -> tuple[tuple[str, str, float], ...]:
    if not names:
        return ()
    error = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(error, error)
    return tuple(
        (names[i], names[j], float(correlation[i, j]))
        for i in range(len(names))
        for j in range(i)
        if abs(correlation[i, j]) > DEGENERATE
    )


def correlation_of(names: Sequence[str], covariance: Array) -> Correlation:
    """A covariance as correlations, to four digits."""
    error = np.sqrt(np.diag(covariance))
    lower = tuple(
        (*(round(float(covariance[i, j] / error[i] / error[j]), 4) for j in range(i)), 1.0)
        for i in range(len(names))
    )
    return Correlation(tuple(names), lower)


def quantile_80(errors: Sequence[float]) -> float:
    """What the absolute log error of a new row stays below with probability 0.8."""
    ranked = sorted(abs(math.log1p(max(error, -0.99))) for error in errors)
    rank = min(len(ranked), math.ceil(0.8 * (len(ranked) + 1)))
    return ranked[rank - 1]


def spread_of(errors: Sequence[float]) -> tuple[float, float | None]:
    """Half-width of the 80% interval, and the share of rows that it covers when each sets it not.

    One row alone sets an interval that nothing can check: its share is None.
    """
    if len(errors) < 2:
        return max(quantile_80(errors), _LEAST_SPREAD), None
    inside = [
        quantile_80([error]) <= quantile_80([*errors[:i], *errors[i + 1 :]])
        for i, error in enumerate(errors)
    ]
    least = _LEAST_SPREAD if len(errors) < _FEW_ROWS else 0.0
    return max(least, quantile_80(errors)), sum(inside) / len(inside)


def _roofline(rows: Sequence[KernelRow], hardware: Hardware) -> tuple[float, ...]:
    """Baseline: bytes at HBM's nominal rate or MACs at the cube's, times one efficiency."""
    bare = ideal(hardware)
    shares = [math.log(row.measured_us / row.predicted_us(bare)) for row in rows]
    errors = []
    for i, row in enumerate(rows):
        others = shares[:i] + shares[i + 1 :] or [0.0]
        factor = math.exp(sum(others) / len(others))
        errors.append(_error(row.predicted_us(bare) * factor, row))
    return tuple(errors)


def _neighbour(rows: Sequence[KernelRow]) -> tuple[float, ...]:
    """Baseline: the time of the nearest other row, by the logarithms of its numbers.

    Empty where there is no other row.
    """
    if len(rows) < 2:
        return ()
    points = [numbers(row.specs[-1]) for row in rows]

    def distance(a: Mapping[str, float], b: Mapping[str, float]) -> float:
        return sum(abs(math.log((a[n] + 1) / (b[n] + 1))) for n in a if n in b)

    errors = []
    for i, row in enumerate(rows):
        others = [j for j in range(len(rows)) if j != i]
        nearest = min(others, key=lambda j: distance(points[i], points[j]))
        errors.append(_error(rows[nearest].measured_us, row))
    return tuple(errors)
