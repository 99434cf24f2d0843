"""Geometry of a line chart over a few places, with a bar for each value's interval."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 420.0, 220.0
_COLOURS = ("#2f6fb2", "#c0562b", "#3d9970", "#8e5ea2")
_TICKS = 5  # at most, beside 0


@dataclass(frozen=True, slots=True)
class Value:
    """A value at a place of the x axis, with the ends of its interval where it has one."""

    place: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One line."""

    label: str
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Mark:
    """One value in px: (x, y), the ends of its interval, and what pointing at it says."""

    x: float
    y: float
    low_y: float
    high_y: float
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A series in px."""

    label: str
    colour: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart in px; ``places`` and ``ticks`` label the axes, ``level`` is a line across."""

    title: str
    x_label: str
    places: tuple[tuple[float, str], ...]
    ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]
    level: tuple[float, str] | None


def line_chart(
    title: str,
    x_label: str,
    series: Sequence[Series],
    level: tuple[float, str] | None = None,
) -> Chart | None:
    """Series over the places that occur in them, in order of appearance, from 0 up.

    ``level`` is a value with a name, drawn across.  ``None`` where there is nothing to draw.
    """
    places = list(dict.fromkeys(v.place for line in series for v in line.values))
    ends = [
        end
        for line in series
        for v in line.values
        for end in (v.value, v.low, v.high)
        if end is not None
    ]
    if not places:
        return None
    ends += [0.0] if level is None else [0.0, level[0]]
    low, high = min(ends), max(ends)
    span = _span(low, high)
    x = {place: WIDTH * (at + 0.5) / len(places) for at, place in enumerate(places)}

    def y(value: float) -> float:
        return HEIGHT * (high - value) / span

    def mark(value: Value) -> Mark:
        low_end = value.value if value.low is None else value.low
        high_end = value.value if value.high is None else value.high
        says = f"{value.place}: {value.value:.4g}"
        if value.low is not None:
            says += f" ({low_end:.4g} to {high_end:.4g})"
        return Mark(x[value.place], y(value.value), y(low_end), y(high_end), says)

    return Chart(
        title=title,
        x_label=x_label,
        places=tuple((at, place) for place, at in x.items()),
        ticks=tuple((y(tick), f"{tick:g}") for tick in _ticks(low, high)),
        lines=tuple(
            Line(line.label, _COLOURS[at % len(_COLOURS)], tuple(map(mark, line.values)))
            for at, line in enumerate(series)
        ),
        level=None if level is None else (y(level[0]), level[1]),
    )


def _span(low: float, high: float) -> float:
    """What the frame's height stands for; values that no scale can tell apart are one value."""
    return high - low if high - low > sys.float_info.min * _TICKS else 1.0


def _ticks(low: float, high: float) -> list[float]:
    """Multiples of the step that lie within the ends."""
    step = tick_step(_span(low, high), _TICKS)
    ends = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.10g}") for i in range(ends[0], ends[1] + 1)]


def tick_step(span: float, most: int) -> float:
    """The finest of 1, 2, 5 times a power of ten that needs at most ``most`` steps."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(m * power for m in (1, 2, 5, 10) if m * power * most >= span * (1 - 1e-12))
