"""Nothing feasible: the nearest change of each kind that would make something feasible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from twin.report.table import level_text
from twin.search.changes import with_batch
from twin.search.config import PARALLEL_SIZES
from twin.search.space import DIES, Space
from twin.search.structure import Structure, structural_places
from twin.validate.deployment import EP_RANGE

_CORES = {"cores": "aic_count", "vector_cores": "aiv_count"}
"""The parameter that a knob of cores cannot go beyond, by what the knob drives."""
# Values that are too small break rules too, so each step keeps so many eighths.
_SCAN = 7


@dataclass(frozen=True, slots=True)
class Change:
    """One field of the input, its value, and the nearest that makes a candidate feasible.

    ``to`` is ``None`` where no value of the kind does.
    """

    field: str
    was: int | str
    to: int | str | None

    @property
    def text(self) -> str:
        """For the terminal: as it would be given on the command line."""
        if self.to is None:
            return f"no {self.field} helps (it is {self.was})"
        return f"{self.field}={self.to} (it is {self.was})"


def nearest_changes(space: Space) -> list[Change]:
    """The largest smaller batch and KV length, the fewest more dies, w8a8, and cores that exist.

    Each is tried alone.  A kind that a knob of the space drives, or that cannot be changed
    further, is left out.  Less batch and fewer tokens need less memory, so both are bisected;
    legal numbers of dies are no interval, so all multiples of the smallest are tried in turn.
    """
    return list(_changes(space))


def _changes(space: Space) -> Iterator[Change]:
    workload, deployment = space.base.workload, space.base.deployment
    driven = {knob.drives for knob in space.knobs.values()}
    if "batch" not in driven and workload.global_batch > 1:
        batch = _largest(workload.global_batch, lambda value: _with_batch(space, value))
        yield Change("workload.global_batch", workload.global_batch, batch)
    if workload.kv_tokens > 1:
        tokens = _largest(workload.kv_tokens, lambda value: _with_tokens(space, value))
        yield Change("workload.kv_tokens", workload.kv_tokens, tokens)
    if DIES not in space.levels:
        now = space.dies[0] if space.dies else deployment.total_dies
        yield Change("deployment.dies", now, _more_dies(space, now))
    if deployment.quantisation != "w8a8":
        quantised = replace(deployment, quantisation="w8a8")
        helps = has_feasible(replace(space, base=replace(space.base, deployment=quantised)))
        yield Change("deployment.quantisation", deployment.quantisation, "w8a8" if helps else None)
    for name, knob in space.knobs.items():
        most = space.hardware.count(_CORES[knob.drives]) if knob.drives in _CORES else None
        if most is not None and all(not isinstance(at, str) and at > most for at in knob.levels):
            near = _fewer_cores(space, name, most)
            was = f"[{','.join(level_text(at) for at in knob.levels)}]"
            yield Change(f"search.knobs.{name}.levels", was, near and f"[{near}]")


def has_feasible(space: Space) -> bool:
    """Whether any candidate of ``space`` can run."""
    return any(Structure(space, fixed).is_feasible for fixed in structural_places(space))


def _with_batch(space: Space, sequences: int) -> Space:
    return replace(space, base=with_batch(space.base, sequences))


def _with_tokens(space: Space, tokens: int) -> Space:
    workload = replace(space.base.workload, kv_tokens=tokens)
    return replace(space, base=replace(space.base, workload=workload))


def _largest(now: int, change: Callable[[int], Space]) -> int | None:
    """The largest value below ``now`` that is feasible: scanned in steps, then bisected."""
    high, low = now, now * _SCAN // 8
    while low and not has_feasible(change(low)):
        high, low = low, low * _SCAN // 8
    while low and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if has_feasible(change(middle)) else (low, middle)
    return low or None


def _fewer_cores(space: Space, name: str, most: int) -> str | None:
    """The most cores, of those that the die has, with which a knob alone makes one feasible."""
    for cores in range(most, 0, -1):
        knob = replace(space.knobs[name], levels=(cores,))
        if has_feasible(replace(space, knobs={**space.knobs, name: knob})):
            return str(cores)
    return None


def _more_dies(space: Space, now: int) -> int | None:
    step = _die_step(space)
    most = EP_RANGE[1] * len(space.base.deployment.roles)
    totals = range((now // step + 1) * step, most + 1, step)
    every = (total for total in totals if has_feasible(replace(space, dies=(total,))))
    return next(every, None)


def _die_step(space: Space) -> int:
    """What a number of dies has to be a multiple of, at least."""
    role = space.base.deployment.attention
    driven = {size for knob in space.knobs.values() for size in knob.sizes or ()}
    sizes = (getattr(role, name) for name in PARALLEL_SIZES if name not in driven)
    return math.lcm(*sizes)
