"""The dies of the family, fitted in turn: ops alone on a 910B2, then kernels in network on A3.

What A3 rows do not cover, an A3 die takes from the 910B2, which is the same die family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from calibration.kernel import KernelRow
from calibration.kernel_fit import KindFit, fit_kind
from calibration.limits import clipped
from calibration.prior import Prior, shipped_priors
from hardware_models.fitted import Correlation
from hardware_models.hardware import Hardware
from hardware_models.parameter import Parameter
from hardware_models.shapes import ranges_of

DONOR = "910b2"

# Kinds whose parameters the steps of LongCat-Flash share: their rows join the steps' fit.
SHARED_WITH_STEPS = ("matmul", "quant_matmul", "batch_matmul", "dispatch", "combine")

# How far a parameter of one die may lie from its value on a sister die (80% range, factor).
_SISTER_FACTOR = 1.6

# Set by the steps of LongCat-Flash on A3, in whose setting the 910B2 has no rows.
_STEPS_ALONE = (
    "attention_", "mla_prolog_", "cube_head_us", "hbm_", "vector_head_us", "gating_",
    "quant_matmul_", "quant_epilogue", "grouped_matmul_head_us",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FamilyFit:
    """The fitted dies by name, and the fit of every kind on each."""

    dies: Mapping[str, Hardware]
    kinds: tuple[KindFit, ...]


def fit_family(
    rows: Sequence[KernelRow],
    dies: Mapping[str, Hardware],
    progress: Callable[[], None] = lambda: None,
) -> FamilyFit:
    """Fit the kinds of each die; ``dies`` names the donor first, then the dies that learn."""
    fitted: dict[str, Hardware] = {}
    fits: list[KindFit] = []
    learned: dict[str, Parameter] = {}
    for name, die in dies.items():
        priors = dict(shipped_priors(name, "kernels"))
        bare = replace(die, correlations=(), fitted_shapes={})
        start = bare if name == DONOR else _with_sister(bare, fitted[DONOR], learned)
        for parameter in learned.values():
            priors.setdefault(parameter.name, _sister_prior(parameter))
        own = []
        for kind, members in by_kind(rows, name).items():
            own.append(fit_kind(kind, members, start, priors))
            progress()
        fits += own
        fitted[name] = _with_fits(start, own)
        if name == DONOR:
            names = {p.name for fit in own for p in fit.parameters}
            learned = {n: fitted[name].parameters[n] for n in sorted(names)}
    return FamilyFit(fitted, tuple(fits))


def by_kind(rows: Sequence[KernelRow], die: str) -> dict[str, list[KernelRow]]:
    """A die's modelled rows by kind, in the order of the rows."""
    groups: dict[str, list[KernelRow]] = {}
    for row in rows:
        if row.hardware == die and row.specs:
            groups.setdefault(row.kind, []).append(row)
    return groups


def _sister_prior(parameter: Parameter) -> Prior:
    value = parameter.value
    return Prior(
        centre=value,
        range=(
            clipped(parameter.name, value / _SISTER_FACTOR),
            clipped(parameter.name, value * _SISTER_FACTOR),
        ),
        source=f"as on {DONOR}, the same die family",
    )


def _with_sister(die: Hardware, donor: Hardware, learned: Mapping[str, Parameter]) -> Hardware:
    parameters = dict(die.parameters)
    for name, parameter in learned.items():
        if name.startswith(_STEPS_ALONE):
            continue
        prior = _sister_prior(parameter)
        parameters[name] = replace(
            parameter,
            value=digits(parameter.value),
            low=digits(prior.range[0]),
            high=digits(prior.range[1]),
            evidence="interpolated",
            source=f"fit to ops alone on a {DONOR}, the same die family; no row of this die",
        )
    return replace(die, parameters=parameters, fitted_shapes=donor.fitted_shapes)


def _with_fits(die: Hardware, fits: Sequence[KindFit]) -> Hardware:
    """The die with every fitted number, its interval and source, and each kind's scatter."""
    parameters = dict(die.parameters)
    for fit in fits:
        source = f"calibration.fit to {len(fit.rows)} {fit.kind} rows on {fit.hardware}"
        for p in fit.parameters:
            parameters[p.name] = replace(
                parameters[p.name],
                value=digits(p.value),
                low=min(digits(p.low), digits(p.value)),
                high=max(digits(p.high), digits(p.value)),
                evidence="fitted",
                source=f"{source}, which removed {round(100 * p.learned)}% of the prior's width",
            )
        spread = digits(fit.spread)
        if f"spread_{fit.kind}" in parameters:
            parameters[f"spread_{fit.kind}"] = replace(
                parameters[f"spread_{fit.kind}"],
                value=spread,
                low=spread,
                high=spread,
                evidence="fitted",
                source=f"80% quantile of the log errors of {len(fit.rows)} left-out rows",
            )
    specs = [spec for fit in fits for row in fit.rows for spec in row.specs]
    return replace(
        die,
        parameters=parameters,
        correlations=apart([fit.correlation for fit in fits]),
        fitted_shapes={**die.fitted_shapes, **ranges_of(specs)},
    )


def apart(groups: Sequence[Correlation]) -> tuple[Correlation, ...]:
    """Groups in which every parameter stands once: a later group has what two share.

    What is left of the earlier group keeps its correlations; a single parameter has none.
    """
    kept: list[Correlation] = []
    taken: set[str] = set()
    for group in reversed(groups):
        own = [i for i, name in enumerate(group.parameters) if name not in taken]
        taken.update(group.parameters)
        if len(own) > 1:
            names = tuple(group.parameters[i] for i in own)
            lower = tuple(tuple(group.lower[i][j] for j in own if j <= i) for i in own)
            kept.append(Correlation(names, lower))
    return tuple(reversed(kept))


def sister(die: Hardware, of: Hardware) -> Hardware:
    """``die`` with the fitted numbers of a sister of another size, marked interpolated."""
    parameters = dict(die.parameters)
    for parameter in of:
        if parameter.evidence == "fitted":
            parameters[parameter.name] = replace(
                parameter, evidence="interpolated", source=f"as {of.name}: {parameter.source}"
            )
    return replace(
        die,
        parameters=parameters,
        correlations=of.correlations,
        fitted_shapes=of.fitted_shapes,
    )


def digits(value: float) -> float:
    """Four significant digits: more would claim what the data do not hold."""
    return float(f"{value:.4g}")
