"""Parameters from a user's profiles, with what the published rows left as priors.

Kinds that share a parameter are fitted together.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibration.family import apart, digits
from calibration.kernel import KernelRow
from calibration.kernel_fit import correlation_of, solve
from calibration.kinds import PARAMETERS
from calibration.limits import clipped
from calibration.prior import Z80, Prior
from hardware_models.fitted import Correlation, ShapeRanges
from hardware_models.hardware import Hardware
from hardware_models.parameter import Parameter
from hardware_models.shapes import ranges_of

Array = NDArray[np.float64]

_EXCHANGE = ("moe_exchange_us_per_row", "moe_exchange_us_per_ep_doubling")
IN_PROFILES: dict[str, tuple[str, ...]] = {
    **PARAMETERS,
    "dispatch": ("dispatch_base_us", *_EXCHANGE),
    "combine": ("combine_base_us", *_EXCHANGE),
    "collective": (
        "collective_latency_us", "collective_us_per_kb", "collective_group_exponent",
    ),
}  # fmt: skip
"""Parameters by kind that a profile can teach: also those of exchanges, whose waits it tells."""

# A parameter of whose prior width less than this was removed has learned nothing; its value
# belongs to those of the parameters fitted beside it wherever it differs by more than this.
LEARNED = 0.05
_MOVED = 0.01

MISFIT = 0.5
"""Launches that the best parameters still miss by more than this are something else."""

# Fewer rows than this cannot be halved into a fit and a test of it.
_LEAST_HELD_OUT = 6
_LEAST_VALUE = 1e-9


@dataclass(frozen=True, slots=True)
class Moved:
    """A parameter beside its prior: values and 80% intervals; ``learned`` as in the fit."""

    name: str
    unit: str
    prior: float
    prior_range: tuple[float, float]
    value: float
    range: tuple[float, float]
    learned: float

    @property
    def has_moved(self) -> bool:
        """Whether the profile taught anything about it, or what it taught of others moved it."""
        return self.learned >= LEARNED or abs(self.change) >= _MOVED

    @property
    def change(self) -> float:
        """Relative change of the value."""
        return self.value / self.prior - 1


@dataclass(frozen=True, slots=True)
class KindErrors:
    """Median absolute errors of one kind's rows: by the prior, fitted, and on held-out rows."""

    kind: str
    rows: int
    prior: float
    fitted: float
    held_out: float | None


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """The die with what the profile taught, and the covariance of the logs of its parameters.

    ``misfits`` are parameters that stayed because no value of them explains their launches, with
    the median error of the best.
    """

    hardware: Hardware
    parameters: tuple[Moved, ...]
    errors: tuple[KindErrors, ...]
    names: tuple[str, ...]
    covariance: Array
    misfits: Mapping[str, float]


def fit_profile(
    rows: Sequence[KernelRow],
    hardware: Hardware,
    source: str,
    progress: Callable[[], None] = lambda: None,
) -> ProfileFit:
    """Fit all kinds of ``rows``; the ranges of ``hardware`` are the priors.

    ``source`` names the profile in the fitted parameters.  ``progress`` is called once a group
    of kinds.
    """
    priors = priors_of(hardware)
    values: dict[str, float] = {}
    names: list[str] = []
    blocks: list[Array] = []
    together: list[Correlation] = []
    errors: list[KindErrors] = []
    misfits: dict[str, float] = {}
    for kinds in _groups(rows, priors):
        members = [row for row in rows if row.kind in kinds]
        own = {n: priors[n] for n in dict.fromkeys(_names(kinds)) if n in priors}
        if own:
            found, covariance = solve(members, hardware, own)
            missed = _median_error(members, hardware.with_values(found))
            if missed > MISFIT:
                misfits |= dict.fromkeys(own, missed)
            else:
                values |= found
                names += own
                blocks.append(covariance)
                together.append(correlation_of(tuple(own), covariance))
        fitted = hardware.with_values(values)
        held_out = _held_out(members, hardware, own)
        errors += [_errors(kind, members, hardware, fitted, held_out) for kind in kinds]
        progress()
    deviations = {n: _deviation(prior) for n, prior in priors.items()}
    rest = [n for n in priors if n not in values]
    blocks.append(_prior_covariance(rest, deviations, hardware.correlations))
    covariance = _diagonal(blocks)
    everything = (*names, *rest)
    moved = tuple(
        _moved(hardware, priors[n], values.get(n), n, math.sqrt(covariance[i, i]))
        for i, n in enumerate(everything)
    )
    return ProfileFit(
        hardware=replace(
            _with_evidence(hardware, moved, len(rows), source),
            correlations=apart([*hardware.correlations, *together]),
            fitted_shapes=_widened(hardware.fitted_shapes, rows),
        ),
        parameters=moved,
        errors=tuple(errors),
        names=everything,
        covariance=covariance,
        misfits=misfits,
    )


def priors_of(hardware: Hardware) -> dict[str, Prior]:
    """Priors of all parameters that a profile can teach: values and 80% intervals.

    A parameter without a width, or whose interval holds zero, is not fitted.
    """
    found = {}
    for name in dict.fromkeys(_names(IN_PROFILES)):
        parameter = hardware.parameters.get(name)
        if parameter is not None and _LEAST_VALUE < parameter.low < parameter.high:
            found[name] = Prior(
                centre=parameter.value,
                range=(parameter.low, parameter.high),
                source=parameter.source,
            )
    return found


def _names(kinds: Sequence[str] | Mapping[str, tuple[str, ...]]) -> list[str]:
    return [name for kind in kinds for name in IN_PROFILES.get(kind, ())]


def _groups(rows: Sequence[KernelRow], priors: Mapping[str, Prior]) -> list[tuple[str, ...]]:
    """Kinds joined wherever they share a parameter, in order of their rows."""
    groups: list[set[str]] = []
    for kind in dict.fromkeys(row.kind for row in rows):
        names = {n for n in IN_PROFILES.get(kind, ()) if n in priors}
        joined = {kind}
        for group in [g for g in groups if names & set(_names(sorted(g)))]:
            joined |= group
            groups.remove(group)
        groups.append(joined)
    return [tuple(sorted(group)) for group in groups]


def _deviation(prior: Prior) -> float:
    low, high = prior.range
    return math.log(high / low) / (2 * Z80)


def _held_out(
    rows: Sequence[KernelRow], hardware: Hardware, own: Mapping[str, Prior]
) -> dict[str, float]:
    """Errors of every other row, by a fit to the rows between them."""
    ordered = sorted(rows, key=lambda row: (row.kind, row.measured_us))
    if len(ordered) < _LEAST_HELD_OUT or not own:
        return {}
    values, _ = solve(ordered[::2], hardware, own)
    die = hardware.with_values(values)
    return {row.row: _error(row, die) for row in ordered[1::2]}


def _errors(
    kind: str,
    rows: Sequence[KernelRow],
    before: Hardware,
    after: Hardware,
    held_out: Mapping[str, float],
) -> KindErrors:
    own = [row for row in rows if row.kind == kind]
    tested = [held_out[row.row] for row in own if row.row in held_out]
    return KindErrors(
        kind=kind,
        rows=len(own),
        prior=_median_error(own, before),
        fitted=_median_error(own, after),
        held_out=statistics.median(tested) if tested else None,
    )


def _median_error(rows: Sequence[KernelRow], hardware: Hardware) -> float:
    return statistics.median(_error(row, hardware) for row in rows)


def _error(row: KernelRow, hardware: Hardware) -> float:
    return abs(row.predicted_us(hardware) / row.measured_us - 1)


def _prior_covariance(
    names: Sequence[str], deviations: Mapping[str, float], groups: Sequence[Correlation]
) -> Array:
    """Of parameters that no row touched: their widths, and how the published fit ties them."""
    index = {name: i for i, name in enumerate(names)}
    covariance = np.diag([deviations[name] ** 2 for name in names])
    for group in groups:
        matrix = group.matrix()
        for i, one in enumerate(group.parameters):
            for j, other in enumerate(group.parameters):
                if i != j and one in index and other in index:
                    tied = matrix[i][j] * deviations[one] * deviations[other]
                    covariance[index[one], index[other]] = tied
    return covariance


def _diagonal(blocks: Sequence[Array]) -> Array:
    whole = np.zeros((sum(map(len, blocks)),) * 2)
    at = 0
    for block in blocks:
        whole[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return whole


def _widened(known: ShapeRanges, rows: Sequence[KernelRow]) -> ShapeRanges:
    """The fitted shapes with those of the profile."""
    widened = {kind: dict(spans) for kind, spans in known.items()}
    for kind, spans in ranges_of([spec for row in rows for spec in row.specs]).items():
        old = widened.setdefault(kind, {})
        for name, (low, high) in spans.items():
            before = old.get(name, (low, high))
            old[name] = (min(low, before[0]), max(high, before[1]))
    return widened


def _moved(hardware: Hardware, prior: Prior, value: float | None, name: str, error: float) -> Moved:
    unit, before = hardware.parameters[name].unit, (prior.centre, prior.range)
    learned = 0.0 if value is None else max(0.0, 1.0 - error / _deviation(prior))
    width = math.exp(Z80 * error)
    if value is not None:
        found = Moved(name, unit, *before, value, (value / width, value * width), learned)
        if found.has_moved:
            return found
    return Moved(name, unit, *before, *before, 0.0)


def _with_evidence(hardware: Hardware, moved: Sequence[Moved], rows: int, source: str) -> Hardware:
    """The die with the parameters that moved, their intervals and where they came from."""
    parameters: dict[str, Parameter] = dict(hardware.parameters)
    for item in moved:
        if item.has_moved:
            old = parameters[item.name]
            value = digits(item.value)
            low, high = (digits(clipped(item.name, end)) for end in item.range)
            share = round(100 * item.learned)
            parameters[item.name] = replace(
                old,
                value=value,
                low=min(low, value),
                high=max(high, value),
                # What only followed others is as well known as before.
                evidence="fitted" if item.learned >= LEARNED else old.evidence,
                source=f"calibration.fit to {rows} rows of {source}, which removed {share}% "
                f"of the prior's width; prior: {old.source}",
            )
    return replace(hardware, parameters=parameters)
