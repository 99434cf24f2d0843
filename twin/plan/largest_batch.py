"""The largest batch whose fastest schedule keeps to a limit of the TPOT."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hardware_models.errors import InputError
from twin.plan.inner import Best, fastest_of, is_within
from twin.search.changes import with_batch, with_sizes
from twin.search.feasible import Rejection, rejected
from twin.search.space import Space
from twin.search.structure import Places, Structure, structural_places

TPOT = "TPOT"
"""The reason of a batch that is only too slow."""

# The TPOT of the fastest schedule may dip where a batch fits tiles better: so many larger
# batches than the largest found are looked at, too.
_BEYOND = 4


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest batch of one space.

    ``best`` is its fastest schedule, or ``None`` where not even the smallest batch runs;
    ``binds`` is what stops the next larger one (``next_batch``), or the smallest.  ``sizes`` are
    parallel sizes of the base that do not divide so few dies, and what was taken instead.
    """

    best: Best | None
    binds: Rejection
    next_batch: int
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Sequences in all; 0 where nothing runs."""
        return self.best.schedule.workload.global_batch if self.best else 0


@dataclass(frozen=True)
class CapacitySearch:
    """Looks for the largest batch whose fastest schedule keeps to ``limit_us``.

    ``free`` names parallel sizes that nobody asked for: where one does not divide the dies that
    attention has, the largest that divides both is taken.
    """

    limit_us: float
    free: tuple[str, ...] = ()

    def of(self, part: tuple[Space, Places]) -> Capacity:
        """The capacity of one structure of a space.

        Batches fill every attention group alike: the busiest die sets the step, so a batch in
        between costs as much as the next full one.  The largest is found by doubling and
        halving, ``_BEYOND`` larger ones checked; memory and rules grow with the batch.
        """
        space, fixed = part
        try:
            first = Structure(space, fixed)
            schedule = first.schedule([0] * len(first.axes))
        except InputError as error:
            return Capacity(None, rejected(error), space.base.workload.global_batch)
        role = schedule.deployment.attention
        sizes = {name: math.gcd(getattr(role, name), role.dies) for name in self.free}
        sizes = {name: size for name, size in sizes.items() if size != getattr(role, name)}
        space = replace(space, base=with_sizes(space.base, sizes))
        groups = role.attention_groups
        least = schedule.micro_batches

        def at(sequences: int) -> Structure:
            batch = with_batch(space.base, sequences * groups)
            return Structure(replace(space, base=batch), fixed)

        def runs(sequences: int) -> bool:
            structure = at(sequences)
            return structure.is_feasible and is_within(structure, self.limit_us)

        most = least - 1
        tried: int | None = least
        while tried is not None:
            below, above = most, tried
            while runs(above):
                below, above = above, 2 * above
            while above - below > 1:
                middle = (below + above) // 2
                below, above = (middle, above) if runs(middle) else (below, middle)
            most = below
            tried = next((n for n in range(most + 2, most + 2 + _BEYOND) if runs(n)), None)
        return Capacity(
            _best(at(most)) if most >= least else None,
            self._stops(at(most + 1)),
            (most + 1) * groups,
            sizes,
        )

    def _stops(self, structure: Structure) -> Rejection:
        found = fastest_of([structure])
        if isinstance(found, Rejection):
            return found
        over = found.latency_us / self.limit_us - 1
        batch = found.schedule.workload.global_batch
        detail = (
            f"TPOT of {batch} sequences: {found.latency_us / 1e3:.3f} ms at best, "
            f"{(found.latency_us - self.limit_us) / 1e3:.3f} ms above the limit of "
            f"{self.limit_us / 1e3:g} ms"
        )
        return Rejection(TPOT, detail, over)


def parts_of(space: Space) -> list[tuple[Space, Places]]:
    """The structures of a space, to be searched apart."""
    return [(space, fixed) for fixed in structural_places(space)]


def largest(found: Sequence[Capacity]) -> Capacity:
    """The one with the most sequences, then the fastest; where none runs, the nearest."""
    running = [it for it in found if it.best is not None]
    if not running:
        return min(found, key=_distance)
    return min(running, key=lambda it: (-it.batch, it.best.latency_us if it.best else 0.0))


def _distance(found: Capacity) -> tuple[bool, float, str]:
    """What runs but is too slow is nearer than what cannot run."""
    return found.binds.reason != TPOT, found.binds.excess, found.binds.detail


def _best(structure: Structure) -> Best:
    found = fastest_of([structure])
    assert isinstance(found, Best), "a batch that runs has a fastest schedule"
    return found
