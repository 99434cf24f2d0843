"""Two profiles side by side: the change of the step and of every kernel type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibration.profiles.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True)
class TypeDelta:
    """One kernel type in two profiles: launches and us a step and rank in each."""

    type: str
    counts: tuple[float, float]
    times_us: tuple[float, float]

    @property
    def change_us(self) -> float:
        """What the second takes more, us a step and rank."""
        return self.times_us[1] - self.times_us[0]


@dataclass(frozen=True, slots=True)
class Delta:
    """``base`` is the profile compared against; steps in us; types by the size of the change."""

    base_step_us: float
    step_us: float
    types: tuple[TypeDelta, ...]

    @property
    def change(self) -> float:
        """Relative change of the step; positive is slower than the base."""
        return self.step_us / self.base_step_us - 1 if self.base_step_us else 0.0


def compare(profile: Diagnosis, base: Diagnosis) -> Delta:
    """Kernel types by name, each a mean over the steps and ranks of its own profile."""
    sides = (base, profile)
    runs = [max(1, len(side.steps)) for side in sides]

    def of(name: str) -> TypeDelta:
        both = [side.types.get(name, (0, 0.0)) for side in sides]
        counts = [count / n for (count, _), n in zip(both, runs, strict=True)]
        times = [time / n for (_, time), n in zip(both, runs, strict=True)]
        return TypeDelta(name, (counts[0], counts[1]), (times[0], times[1]))

    names: Sequence[str] = list(dict.fromkeys([*base.types, *profile.types]))
    types = sorted((of(name) for name in names), key=lambda row: -abs(row.change_us))
    return Delta(base.mean_step_us, profile.mean_step_us, tuple(types))
