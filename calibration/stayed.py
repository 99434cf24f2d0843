"""Which parameters a profile left at their priors, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibration.kernel import KernelRow
from calibration.profile_fit import IN_PROFILES, ProfileFit

NOT_APART = "launches that it moves are there, but do not tell it from the others"
NO_KERNEL = "no kernel of a profile shows it (it moves steps: overlap, launches, prefetch, skew)"
NO_LAUNCH = "no usable launch"
HOLDS_ZERO = "its interval begins at zero, so that it has no logarithm to fit"


@dataclass(frozen=True, slots=True)
class Stayed:
    """A parameter that has an interval and kept it."""

    name: str
    reason: str


def stayed(fit: ProfileFit, rows: Sequence[KernelRow]) -> tuple[Stayed, ...]:
    """All parameters of the die that could have moved and did not, in its order.

    The spreads of kinds are no such parameters: they are errors of the published fit.
    """
    moved = {p.name for p in fit.parameters if p.has_moved}
    fitted = {p.name for p in fit.parameters}
    seen = {row.kind for row in rows}
    found = []
    for parameter in fit.hardware:
        name = parameter.name
        if name in moved or not parameter.low < parameter.high or name.startswith("spread_"):
            continue
        kinds = [kind for kind, names in IN_PROFILES.items() if name in names]
        if name in fit.misfits:
            missed = fit.misfits[name]
            reason = f"the best fit still misses the launches of {_some(kinds)} by {missed:.0%}"
        elif not kinds:
            reason = NO_KERNEL
        elif not seen & set(kinds):
            reason = f"{NO_LAUNCH} of {_some(kinds)}"
        else:
            reason = NOT_APART if name in fitted else HOLDS_ZERO
        found.append(Stayed(name, reason))
    return tuple(found)


def _some(kinds: Sequence[str]) -> str:
    return ", ".join(kinds[:3]) + (" ..." if kinds[3:] else "")
