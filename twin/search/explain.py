"""Why the winner wins: what decisions are worth, what bounds, what would settle the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardware_models.errors import DeadlockError, InputError
from twin.choices import Level
from twin.deployment import Role
from twin.engine.timeline import Bound
from twin.evaluate import WAIT, Evaluation, latencies
from twin.evidence import kinds_that_read
from twin.search.feasible import rejection
from twin.search.pool import Workers
from twin.search.sensitivity import ENDS, End, Sensitivity, sensitivity_of
from twin.search.space import Space
from twin.search.sweep import Point

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Worth:
    """One knob put back to the base schedule, all others as in the winner.

    ``costs_us`` is the latency that this adds (below 0: the base lies outside the levels and
    is faster), ``None`` where it is infeasible, as ``why`` says.
    """

    knob: str
    level: Level
    costs_us: float | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Decider:
    """A parameter whose measurement tells two ties apart.

    Within its range it moves the distance of candidate ``other`` to the winner by
    ``moves_us``; ``decides`` where that alone puts either in front.  ``kinds`` of op read it.
    """

    parameter: str
    kinds: tuple[str, ...]
    other: int
    moves_us: float
    decides: bool


@dataclass(frozen=True, slots=True)
class Upset:
    """A parameter at one end of its range, where candidate ``winner`` wins.

    The winner as is is slower there by the share ``gain``, more than the tie tolerance.
    """

    parameter: str
    end: End
    value: float
    winner: int
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All of it.  ``bounds``: by role, the share of its main stream's time by what bounds it."""

    worth: tuple[Worth, ...]
    bounds: Mapping[Role, Mapping[str, float]]
    deciders: tuple[Decider, ...]
    upsets: tuple[Upset, ...]
    challengers: tuple[int, ...]


def explain(
    space: Space,
    best: Evaluation,
    ties: Sequence[int],
    others: Sequence[Point],
    tolerance: float,
    workers: Workers,
) -> Explanation:
    """Explain the first of ``ties``; ``others`` are points that may win on another die.

    Raises:
        InputError: a schedule asks for something that is not simulated.
        DeadlockError: a schedule cannot finish.
    """
    winner = ties[0]
    near = list(ties[1:])
    far = [index for index in challengers(space, winner, others) if index not in ties]
    indices = [winner, *near, *far]
    schedules = [space.schedule(index) for index in indices]
    table = sensitivity_of(schedules, space.model, space.hardware, workers)
    kinds = kinds_that_read(best.graph, space.hardware)
    return Explanation(
        worth=tuple(worth(space, winner, best.latency_us)),
        bounds=bounds_of(best),
        deciders=tuple(_deciders(table, indices, len(near), kinds)),
        upsets=tuple(_upsets(table, indices, tolerance)),
        challengers=tuple(far),
    )


def worth(space: Space, winner: int, latency_us: float) -> list[Worth]:
    """What each knob is worth, the dearest first; those that nothing can undo come last."""
    found = []
    for knob, level in space.choice(winner).items():
        without = _latency_us(space, winner, knob)
        if isinstance(without, str):
            found.append(Worth(knob, level, None, without))
        else:
            found.append(Worth(knob, level, without - latency_us, None))
    return sorted(found, key=lambda each: math.inf if each.costs_us is None else -each.costs_us)


def bounds_of(best: Evaluation) -> dict[Role, dict[Bound | str, float]]:
    """Shares of the step of the first die of each role, ``wait`` included; largest first."""
    graph, timeline = best.graph, best.timeline
    first: dict[Role, int] = {}
    for die in graph.dies:
        first.setdefault(die.role, die.index)
    found: dict[Role, dict[Bound | str, float]] = {}
    for role, index in first.items():
        times: dict[Bound | str, float] = {}
        for op, record in zip(graph.ops, timeline.records, strict=True):
            if op.die != index or op.stream != "main":
                continue
            times[record.bound] = times.get(record.bound, 0.0) + record.end_us - record.start_us
            times[WAIT] = times.get(WAIT, 0.0) + record.wait_us
        total = sum(times.values()) or 1.0
        ordered = sorted(times.items(), key=lambda item: (-item[1], item[0]))
        found[role] = {name: us / total for name, us in ordered if us > 0}
    return found


def challengers(space: Space, winner: int, others: Sequence[Point]) -> list[int]:
    """For each knob the fastest candidate with another level of it.

    Where none was simulated, it is the fastest of those that differ from the winner in the
    knob alone.
    """
    chosen = space.choice(winner)
    known = sorted(others, key=lambda point: (point.latency_us, point.index))
    found: list[int] = []
    for knob, level in chosen.items():
        index = next((p.index for p in known if space.choice(p.index)[knob] != level), None)
        index = _neighbour(space, winner, knob) if index is None else index
        if index is not None and index not in found:
            found.append(index)
    return found


def _neighbour(space: Space, winner: int, knob: str) -> int | None:
    best: tuple[float, int] | None = None
    for index in space.neighbours(winner, knob):
        us = _latency_us(space, index)
        if not isinstance(us, str):
            best = min(best or (us, index), (us, index))
    return None if best is None else best[1]


def _latency_us(space: Space, index: int, without: str | None = None) -> float | str:
    """A candidate's latency, or why it cannot run."""
    try:
        schedule = space.schedule(index, without)
        reason = rejection(schedule, space.model, space.hardware)
        if reason is not None:
            return reason.detail
        return latencies(schedule, space.model, [space.hardware])[0]
    except (InputError, DeadlockError) as error:
        return str(error)


def _deciders(
    table: Sensitivity, indices: Sequence[int], ties: int, kinds: Mapping[str, tuple[str, ...]]
) -> list[Decider]:
    """For each parameter the tie that it moves most; those that move most first."""
    found = []
    for at, parameter in enumerate(table.parameters):
        moves = [(float(table.moves_us(row)[at]), -row) for row in range(1, 1 + ties)]
        if not moves or max(moves)[0] <= 0.0:
            continue
        moves_us, row = max(moves)[0], -max(moves)[1]
        read_by = kinds.get(parameter.name, ())
        decides = table.decides(row, at)
        found.append(Decider(parameter.name, read_by, indices[row], moves_us, decides))
    return sorted(found, key=lambda each: (-each.moves_us, each.parameter))[:_SHOWN]


def _upsets(table: Sensitivity, indices: Sequence[int], tolerance: float) -> list[Upset]:
    found = []
    for at, parameter in enumerate(table.parameters):
        for place, end in enumerate(ENDS):
            row, gain = table.fastest(at, place)
            if gain > tolerance:
                value = float(getattr(parameter, end))
                found.append(Upset(parameter.name, end, value, indices[row], gain))
    return sorted(found, key=lambda each: (-each.gain, each.parameter))
