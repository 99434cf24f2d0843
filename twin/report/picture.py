"""Geometry of the report's pictures; the template only draws what is worked out here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twin.choices import Level
from twin.engine.timeline import Timeline
from twin.graph.step_graph import StepGraph
from twin.report.chart import tick_step
from twin.report.table import level_text
from twin.report.trace import streams_of

# Colours far apart in hue for kinds that stand beside each other; grey for what does no matmul
# and for idle time, one more for the kinds that are not listed.
_COLOURS = {
    "mla_prolog": "#2f6fb2",
    "mla_attention": "#173f6d",
    "batch_matmul": "#6fa8dc",
    "matmul": "#3d9970",
    "quant_matmul": "#1e7a46",
    "grouped_matmul": "#c0562b",
    "collective": "#8e5ea2",
    "dispatch": "#b5487e",
    "combine": "#d2749f",
    "send": "#e0a030",
    "receive": "#f0c674",
    "vector_send": "#e0a030",
    "vector_receive": "#f0c674",
    "expert_send": "#e0a030",
    "expert_receive": "#f0c674",
    "prefetch": "#57b8b0",
    "sample": "#7a5c3e",
    "gating_topk": "#a0522d",
    "row_op": "#75808c",
    "wait": "#dfe4e9",
}
_OTHER = "#b3a994"

WIDTH, LANE, BAR = 1080.0, 26.0, 18.0
PLOT_WIDTH, PLOT_HEIGHT = 250.0, 150.0
_TICKS = 10  # at most
# A plot reaches this far above the best of its worst level; what lies higher would squeeze it.
_HEADROOM = 1.8


@dataclass(frozen=True, slots=True)
class Bar:
    """One op in a lane; lengths in px."""

    x: float
    width: float
    colour: str
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream of a die."""

    label: str
    y: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """One middle layer on all streams of all simulated dies."""

    height: float
    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class KnobPlot:
    """Latency against one knob: every point, the best at each level, the best of all."""

    name: str
    levels: tuple[tuple[float, str], ...]
    dots: tuple[tuple[float, float], ...]
    line: tuple[tuple[float, float, str], ...]
    best: tuple[float, float]
    low_label: str
    high_label: str


def timeline_picture(graph: StepGraph, timeline: Timeline) -> TimelinePicture:
    """The layer in the middle of the step, from the end of the one before to its own end."""
    marks = graph.period_marks
    middle = len(marks) // 2
    begin = timeline.records[marks[middle - 1]].end_us if middle else 0.0
    end = timeline.records[marks[middle]].end_us if marks else timeline.makespan_us
    scale = WIDTH / (end - begin)
    lanes: list[Lane] = []
    kinds: dict[str, str] = {}
    for die in graph.dies:
        for stream in streams_of(graph, die.index):
            bars = []
            for op, record in zip(graph.ops, timeline.records, strict=True):
                if op.die != die.index or op.stream != stream:
                    continue
                start, stop = max(record.start_us, begin), min(record.end_us, end)
                if stop <= start:
                    continue
                colour = _COLOURS.get(op.kind, _OTHER)
                kinds[op.kind if op.kind in _COLOURS else "other"] = colour
                title = (
                    f"{op.name}: {record.end_us - record.start_us:.1f} us, "
                    f"waited {record.wait_us:.1f} us, bound by {record.bound}"
                )
                width = max((stop - start) * scale, 0.5)
                bars.append(Bar((start - begin) * scale, width, colour, title))
            label = f"{die.role} {die.index} {stream}"
            lanes.append(Lane(label, len(lanes) * LANE, tuple(bars)))
    step = tick_step(end - begin, _TICKS)
    ticks = tuple(
        (i * step * scale, f"{i * step:g}") for i in range(math.floor((end - begin) / step) + 1)
    )
    legend = tuple(sorted(kinds.items()))
    return TimelinePicture(len(lanes) * LANE, tuple(lanes), ticks, legend)


def knob_plots(points: Sequence[tuple[Mapping[str, Level], float]], latency: str) -> list[KnobPlot]:
    """One plot for every knob with more than one level among the (choice, latency us) points.

    ``latency`` is the name of what was measured: TPOT or TTFT.
    """
    if not points:
        return []
    best = min(points, key=lambda point: point[1])
    low = best[1]
    plots = []
    for name in points[0][0]:
        levels = sorted({choice[name] for choice, _ in points})
        if len(levels) < 2:
            continue
        x = {level: PLOT_WIDTH * (i + 0.5) / len(levels) for i, level in enumerate(levels)}
        at_level = {
            level: min(us for choice, us in points if choice[name] == level) for level in levels
        }
        high = low + _HEADROOM * (max(at_level.values()) - low or 0.01 * low)
        # Equal dots drawn once: a page of 100,000 points must still open.
        dots = sorted({(x[c[name]], round(_y(us, low, high), 1)) for c, us in points if us <= high})
        plots.append(
            KnobPlot(
                name=name,
                levels=tuple((x[level], f"{level_text(level)}") for level in levels),
                dots=tuple(dots),
                line=tuple(
                    (
                        x[level],
                        _y(us, low, high),
                        f"{level_text(level)}: best {latency} {us / 1e3:.3f} ms",
                    )
                    for level, us in at_level.items()
                ),
                best=(x[best[0][name]], _y(low, low, high)),
                low_label=f"{low / 1e3:.2f}",
                high_label=f"{high / 1e3:.2f}",
            )
        )
    return plots


def _y(latency_us: float, low: float, high: float) -> float:
    return PLOT_HEIGHT * (high - latency_us) / (high - low)


def kind_bars(time_by_kind: Mapping[str, float]) -> list[tuple[str, float, float, str]]:
    """(kind, ms, share of the largest, colour), largest first."""
    ranked = sorted(time_by_kind.items(), key=lambda item: -item[1])
    most = ranked[0][1] if ranked else 1.0
    return [(k, ms, ms / (most or 1.0), _COLOURS.get(k, _OTHER)) for k, ms in ranked]
