"""One parameter at a time: what it does to the differences between schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hardware_models.hardware import Hardware
from hardware_models.parameter import Parameter
from twin.evaluate import latencies
from twin.evidence import parameters_read
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.search.pool import Workers

Floats = npt.NDArray[np.float64]
End = Literal["low", "high"]
ENDS: tuple[End, End] = ("low", "high")


@dataclass(frozen=True)
class Sensitivity:
    """Latencies in us of some schedules, the winner first.

    ``as_is`` has one a schedule; ``at_ends[schedule, parameter, end]`` those with one of
    ``parameters`` at the low or high end of its range, all others at their values.
    """

    parameters: tuple[Parameter, ...]
    as_is: Floats
    at_ends: Floats

    def moves_us(self, schedule: int) -> Floats:
        """By how much each parameter moves the schedule's distance to the winner, at most."""
        distance = self.at_ends[schedule] - self.at_ends[0]
        return np.asarray(np.abs(distance - (self.as_is[schedule] - self.as_is[0])).max(axis=1))

    def decides(self, schedule: int, parameter: int) -> bool:
        """Whether the parameter alone makes the schedule the faster or the slower of the two."""
        distance = self.at_ends[schedule, parameter] - self.at_ends[0, parameter]
        return bool(distance.min() < 0.0 < distance.max())

    def fastest(self, parameter: int, end: int) -> tuple[int, float]:
        """Who wins at one end, and by what share of its latency the winner as is is slower."""
        column = self.at_ends[:, parameter, end]
        first = int(np.argmin(column))
        return first, float(column[0] / column[first] - 1)


def sensitivity_of(
    schedules: Sequence[Schedule], model: ModelSpec, hardware: Hardware, workers: Workers
) -> Sensitivity:
    """Run every schedule at both ends of every parameter that any of them reads.

    Raises:
        InputError: a schedule asks for something that is not simulated.
        DeadlockError: a schedule cannot finish.
    """
    read = {p.name for each in schedules for p in parameters_read(each, model, hardware)}
    moving = tuple(p for p in hardware if p.name in read and p.low < p.high)
    runs = list(workers.map(EndRun(model, hardware, moving), schedules))
    table = np.array(runs).reshape(len(schedules), 1 + 2 * len(moving))
    ends = table[:, 1:].reshape(len(schedules), len(moving), len(ENDS))
    return Sensitivity(moving, table[:, 0], ends)


@dataclass(frozen=True)
class EndRun:
    """A schedule's latency as is, then at the low and high end of each parameter."""

    model: ModelSpec
    hardware: Hardware
    parameters: tuple[Parameter, ...]

    def __call__(self, schedule: Schedule) -> list[float]:
        """Latencies in us."""
        moved = (
            self.hardware.with_values({p.name: getattr(p, end)})
            for p in self.parameters
            for end in ENDS
        )
        return latencies(schedule, self.model, [self.hardware, *moved])
