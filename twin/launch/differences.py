"""What a target cannot say: part by part, with the nearest choice and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hardware_models.errors import TwinError
from hardware_models.hardware import Hardware
from twin.evaluate import latencies
from twin.launch.parts import PARTS, Part
from twin.launch.spelling import spelled
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.search.feasible import rejection


@dataclass(frozen=True, slots=True)
class Difference:
    """One part in which the nearest schedule differs; ``apply`` makes the difference."""

    part: str
    asked: str
    nearest: str
    apply: Callable[[Schedule], Schedule] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Step:
    """Differences that are made together, and the TPOT in us behind them.

    ``cost_us`` is against the step before.  None where one of the two cannot be simulated.
    """

    differences: tuple[Difference, ...]
    tpot_us: float | None
    cost_us: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The TPOT of the asked and of the nearest schedule, and the way between them.

    ``reason`` says why a TPOT is None.
    """

    asked_us: float | None
    nearest_us: float | None
    steps: tuple[Step, ...]
    reason: str | None


def differences(asked: Schedule, nearest: Schedule) -> list[Difference]:
    """All parts in which ``nearest`` differs: none exactly where the two are equal.

    The spelling of names changes no op and comes first, as one difference.
    """
    plain = spelled(asked)
    found = []
    if plain != asked:
        found.append(Difference("names", _names(asked), _names(plain), spelled))
    for part in PARTS:
        one, other = part.get(plain), part.get(nearest)
        if one != other:
            found.append(Difference(part.name, *part.show(one, other), _putting(part, other)))
    return found


def _putting(part: Part, value: object) -> Callable[[Schedule], Schedule]:
    return lambda schedule: part.put(schedule, value)


def _names(schedule: Schedule) -> str:
    words = [stage.name for stage in schedule.stages]
    words += [f"scope {scope}" for scope in schedule.super_kernel]
    return ", ".join([*words, *(f"prefetch by {p.role}" for p in schedule.prefetch if p.role)])


def compare(
    asked: Schedule,
    nearest: Schedule,
    found: Sequence[Difference],
    model: ModelSpec,
    hardware: Hardware,
) -> Comparison:
    """Simulate both schedules, and between them one difference after the other.

    A difference that breaks a rule while others are missing waits for them; what never
    stands alone is made in one step at the end.
    """

    def tpot(schedule: Schedule) -> float | str:
        reason = rejection(schedule, model, hardware)
        if reason is not None:
            return reason.detail
        try:
            return latencies(schedule, model, [hardware])[0]
        except TwinError as error:
            return str(error)

    first = tpot(asked)
    end = tpot(nearest) if found else first
    steps: list[Step] = []
    schedule, last, pending = asked, first, list(found)
    while len(pending) > 1:
        stand = ((d, d.apply(schedule)) for d in pending)
        alone = ((d, changed, tpot(changed)) for d, changed in stand)
        made = next((item for item in alone if isinstance(item[2], float)), None)
        if made is None:
            break
        difference, schedule, result = made
        steps.append(_step([difference], last, result))
        pending.remove(difference)
        last = result
    if pending:
        steps.append(_step(pending, last, end))
    reasons = [result for result in (first, end) if isinstance(result, str)]
    return Comparison(_us(first), _us(end), tuple(steps), next(iter(reasons), None))


def _step(made: Sequence[Difference], before: float | str, after: float | str) -> Step:
    was, is_now = _us(before), _us(after)
    cost = None if was is None or is_now is None else is_now - was
    return Step(tuple(made), is_now, cost)


def _us(tpot: float | str) -> float | None:
    return tpot if isinstance(tpot, float) else None
