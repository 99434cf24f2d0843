"""What is asked of one structure of a space, by its number: functions that processes are sent."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction

from hardware_models.errors import InputError
from twin.deployment import Afd
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.evaluate import throughput_of
from twin.schedule_io import dump_schedule
from twin.search.code_version import code_version
from twin.search.explore import Found, Levels, descend, explore, root_bound_us
from twin.search.space import Space
from twin.search.structure import Infeasible, Structure, structural_places


@dataclass(frozen=True)
class Outline:
    """One structure before its candidates are looked at.

    ``scale`` is throughput x latency: structures with the same one compete in latency alone.
    """

    size: int
    infeasible: Infeasible
    allowed: Levels
    scale: float
    bound_us: float

    @property
    def is_feasible(self) -> bool:
        """Whether any candidate is."""
        return self.scale > 0.0


@dataclass(frozen=True)
class Task:
    """A set of candidates of one structure, and the latency that they have to compete with."""

    structure: int
    levels: Levels
    cutoff_us: float
    budget: int

    @property
    def size(self) -> int:
        """How many candidates it has."""
        return math.prod(len(each) for each in self.levels)


class Explorer:
    """What the processes are sent: the space, and functions of a structure's number.

    Structures stay in each process, under the space's key, from one call to the next.
    """

    _kept: dict[tuple[str, int], Structure] = {}  # noqa: RUF012 - one for each process

    def __init__(
        self, space: Space, tolerance: float, options: EngineOptions = DEFAULT_OPTIONS
    ) -> None:
        self.space, self.tolerance, self.options = space, tolerance, options
        self.fixed = list(structural_places(space))
        text = repr(
            (
                dump_schedule(space.base),
                space.model,
                list(space.hardware),
                space.knobs,
                space.dies,
            )
        )
        self.space_key = hashlib.sha256(text.encode()).hexdigest()
        whole = f"{text} {tolerance} {options} {code_version()}"
        self.fingerprint = hashlib.sha256(whole.encode()).hexdigest()

    def structure(self, number: int) -> Structure:
        """The structure with this number in the order of the space."""
        key = (self.space_key, number)
        if key not in self._kept:
            self._kept[key] = Structure(self.space, self.fixed[number])
        return self._kept[key]

    def forget(self) -> None:
        """Drop the structures that this process has made."""
        self._kept.clear()

    def effort(self, number: int) -> Fraction:
        """About how much work a structure is: the dies that are simulated, per micro-batch."""
        structure = self.structure(number)
        try:
            deployment = structure.schedule([0] * len(structure.axes)).deployment
        except InputError:
            return Fraction(0)
        if not deployment.is_afd:
            return Fraction(1)
        ratio = Fraction(deployment.roles["attention"].dies, deployment.roles["ffn"].dies)
        return (1 + ratio) * (deployment.afd or Afd()).micro_batches

    def outline(self, number: int) -> Outline:
        """Feasible levels and a bound."""
        it = self.structure(number)
        if not it.is_feasible:
            return Outline(it.size, it.infeasible, [], 0.0, math.inf)
        scale = throughput_of(it.schedule(it.plan_levels), 1.0)
        allowed = [list(range(len(each))) for each in it.allowed]
        return Outline(it.size, it.infeasible, allowed, scale, root_bound_us(it, self.options))

    def descend(self, number: int) -> tuple[float, int | None]:
        """Latency in us of a good candidate, and its index."""
        return descend(self.structure(number), self.options)

    def explore(self, task: Task) -> Found:
        """Simulate or prune."""
        it = self.structure(task.structure)
        return explore(it, task.levels, task.cutoff_us, self.tolerance, task.budget, self.options)
