"""Two profiles side by side: the change of the step, of every kernel type and op kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.profiles.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True)
class TypeDelta:
    """One kernel type or op kind in two profiles: launches and us a step and rank in each."""

    type: str
    counts: tuple[float, float]
    times_us: tuple[float, float]

    @property
    def change_us(self) -> float:
        """What the second takes more, us a step and rank."""
        return self.times_us[1] - self.times_us[0]


@dataclass(frozen=True, slots=True)
class Delta:
    """``base`` is the profile compared against; steps in us; the largest changes first.

    Types are the profiles' own; kinds are the twin's and join what CANNs name differently.
    """

    base_step_us: float
    step_us: float
    types: tuple[TypeDelta, ...]
    kinds: tuple[TypeDelta, ...]

    @property
    def change(self) -> float:
        """Relative change of the step; positive is slower than the base."""
        return self.step_us / self.base_step_us - 1 if self.base_step_us else 0.0


def compare(profile: Diagnosis, base: Diagnosis) -> Delta:
    """Each type and kind as a mean over the steps and ranks of its own profile."""
    runs = (max(1, len(base.steps)), max(1, len(profile.steps)))
    kinds = [
        {kind.kind: (kind.count, kind.total_us) for kind in side.kinds.values()}
        for side in (base, profile)
    ]
    return Delta(
        base.mean_step_us,
        profile.mean_step_us,
        _changes(base.types, profile.types, runs),
        _changes(kinds[0], kinds[1], runs),
    )


_Totals = Mapping[str, tuple[int, float]]


def _changes(before: _Totals, after: _Totals, runs: tuple[int, int]) -> tuple[TypeDelta, ...]:
    def of(name: str) -> TypeDelta:
        (n0, t0), (n1, t1) = before.get(name, (0, 0.0)), after.get(name, (0, 0.0))
        return TypeDelta(name, (n0 / runs[0], n1 / runs[1]), (t0 / runs[0], t1 / runs[1]))

    rows = [of(name) for name in dict.fromkeys([*before, *after])]
    return tuple(sorted(rows, key=lambda row: -abs(row.change_us)))
