"""A trace that Perfetto and chrome://tracing open: numeric microseconds from zero."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from twin.engine.observer import Counters
from twin.engine.timeline import Timeline
from twin.graph.step_graph import PREFETCH_STREAM, StepGraph
from twin.names import HOST_STREAM
from twin.results import write_json

_FIRST = ("main", "moe", "link", PREFETCH_STREAM, HOST_STREAM)
"""Streams in the order of their rows; several link queues follow ``link``."""

Event = dict[str, object]


def write_trace(
    path: Path, graph: StepGraph, timeline: Timeline, counters: Counters | None = None
) -> Path:
    """Write the run: a process a die, a thread a stream, a counter track a resource.

    Raises:
        InputError: the file cannot be written.
    """
    events = [*_names(graph), *_slices(graph, timeline)]
    if counters is not None:
        events += _counters(counters)
    return write_json(path, {"displayTimeUnit": "ms", "traceEvents": events}, indent=None)


def streams_of(graph: StepGraph, die: int) -> list[str]:
    """The streams of a die in display order."""
    return in_display_order(op.stream for op in graph.ops if op.die == die)


def in_display_order(streams: Iterable[str]) -> list[str]:
    """Each stream once."""
    return sorted(set(streams), key=lambda name: (_FIRST.index(name.partition(".")[0]), name))


def _names(graph: StepGraph) -> list[Event]:
    events: list[Event] = []
    for die in graph.dies:
        name = {"name": f"die {die.index} {die.role}"}
        events.append({"ph": "M", "name": "process_name", "pid": die.index, "args": name})
        for row, stream in enumerate(streams_of(graph, die.index)):
            where = {"ph": "M", "pid": die.index, "tid": row}
            events.append({**where, "name": "thread_name", "args": {"name": stream}})
            events.append({**where, "name": "thread_sort_index", "args": {"sort_index": row}})
    return events


def _slices(graph: StepGraph, timeline: Timeline) -> list[Event]:
    rows = {
        (die.index, stream): row
        for die in graph.dies
        for row, stream in enumerate(streams_of(graph, die.index))
    }
    return [
        {
            "ph": "X",
            "name": op.name,
            "cat": op.kind,
            "pid": op.die,
            "tid": rows[op.die, op.stream],
            "ts": record.start_us,
            "dur": record.end_us - record.start_us,
            "args": {
                "kind": op.kind,
                "bound": record.bound,
                "wait_us": record.wait_us,
                "aic": op.cores.aic,
                "aiv": op.cores.aiv,
                "scope": op.scope,
                "resident_bytes": record.resident_bytes,
            },
        }
        for op, record in zip(graph.ops, timeline.records, strict=True)
    ]


def _counters(counters: Counters) -> list[Event]:
    return [
        {"ph": "C", "name": name, "pid": die, "ts": time_us, "args": {"value": value}}
        for (die, name), series in sorted(counters.series.items())
        for time_us, value in series
    ]
