"""What a trace says beyond the kernel table: event waits of streams, and the steps' spans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from calibration.profiles.json_values import number
from calibration.profiles.skipped import Skips
from calibration.profiles.trace import Event, stream_events

HARDWARE_PROCESS = "Ascend Hardware"
_WAIT = "EVENT_WAIT"
_STEP = "ProfilerStep#"
_STREAM = "Stream "


@dataclass(frozen=True, slots=True)
class EventWait:
    """A stream stood in an event wait; times in us from the rank's origin."""

    stream: str
    start_us: float
    duration_us: float

    @property
    def end_us(self) -> float:
        """When the event came."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class StepSpan:
    """A step as the host saw it: ``ProfilerStep#N``; times in us from the rank's origin."""

    step: str
    start_us: float
    duration_us: float


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """The event waits and steps of one trace, in file order; ``events`` counts all events."""

    waits: tuple[EventWait, ...]
    steps: tuple[StepSpan, ...]
    events: int


def read_trace(
    path: Path,
    origin_us: int,
    skips: Skips,
    progress: Callable[[int], None] = lambda _: None,
) -> TraceFacts:
    """One pass over a trace; only waits, steps and names are kept.

    Raises:
        InputError: see :func:`calibration.profiles.trace.stream_events`.
    """
    names: dict[tuple[str, object, object], str] = {}
    waits: list[tuple[object, object, float, float]] = []
    steps: list[StepSpan] = []
    events = 0
    for line, event in stream_events(path, skips, progress):
        events += 1
        name = event.get("name")
        if event.get("ph") == "M":
            _note_name(names, event)
        elif isinstance(name, str) and (name == _WAIT or name.startswith(_STEP)):
            span = span_of(event, origin_us)
            if span is None:
                skips.add(path, line, "an event with an impossible time")
            elif name == _WAIT:
                waits.append((_key(event.get("pid")), _key(event.get("tid")), *span))
            else:
                steps.append(StepSpan(name.removeprefix(_STEP), *span))
    return TraceFacts(
        waits=tuple(
            EventWait(_stream(names, pid, tid), start, duration)
            for pid, tid, start, duration in waits
            if names.get(("process_name", pid, None), HARDWARE_PROCESS) == HARDWARE_PROCESS
        ),
        steps=tuple(steps),
        events=events,
    )


def span_of(event: Event, origin_us: int) -> tuple[float, float] | None:
    """Start (from the origin) and duration of a slice in us; None where either is impossible."""
    duration = number(event.get("dur"))
    try:
        moment = Decimal(str(event.get("ts")).strip())
    except InvalidOperation:
        return None
    if duration is None or not moment.is_finite() or moment < 0:
        return None
    return float(moment - origin_us), duration


def _note_name(names: dict[tuple[str, object, object], str], event: Event) -> None:
    kind, arguments = event.get("name"), event.get("args")
    if isinstance(arguments, dict) and isinstance(arguments.get("name"), str):
        thread = _key(event.get("tid")) if kind == "thread_name" else None
        names[str(kind), _key(event.get("pid")), thread] = arguments["name"]


def _key(value: object) -> object:
    """A process or thread number; lists and objects cannot be one."""
    return value if isinstance(value, int | float | str) else None


def _stream(names: dict[tuple[str, object, object], str], pid: object, tid: object) -> str:
    return names.get(("thread_name", pid, tid), str(tid)).removeprefix(_STREAM)
