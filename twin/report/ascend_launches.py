"""The ops of a simulated die as a profiler would list them: ordered, numbered, named."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from twin.engine.timeline import OpRecord, Timeline
from twin.graph.step_graph import Op, StepGraph
from twin.report.ascend_rows import collective_of, is_kernel
from twin.report.trace import streams_of

STEP = "1"
"""The number of the one step that is simulated."""

FIRST_STREAM = 2
"""Profilers number a model's streams from 2 on."""


@dataclass(frozen=True, slots=True)
class Launch:
    """An op with its record, its stream's number and, for a collective, its profile name."""

    op: Op
    record: OpRecord
    stream: int
    collective: str
    wait_us: float

    @property
    def duration_us(self) -> float:
        """From start to end."""
        return self.record.end_us - self.record.start_us


def collective_names(graph: StepGraph) -> dict[int, str]:
    """``hcom_allGather__000_N_1`` by op; the members of one collective share a name."""
    numbers: dict[str, int] = {}
    names = {}
    for op in graph.ops:
        if title := collective_of(op.spec):
            key = op.rendezvous or f"{op.die} {op.name}"
            number = numbers.setdefault(key, len(numbers))
            names[op.index] = f"{title}__000_{number}_1"
    return names


def launches_of(
    graph: StepGraph, timeline: Timeline, die: int, names: dict[int, str]
) -> list[Launch]:
    """A die's ops by start; the wait is the time since its stream's last op ended."""
    numbers = {name: FIRST_STREAM + i for i, name in enumerate(streams_of(graph, die))}
    ends: dict[str, float] = {}
    found = []
    records = timeline.records
    mine = sorted(
        (op for op in graph.ops if op.die == die),
        key=lambda op: (records[op.index].start_us, op.index),
    )
    for op in mine:
        record = records[op.index]
        wait_us = max(0.0, record.start_us - ends.get(op.stream, record.start_us))
        ends[op.stream] = record.end_us
        name = names.get(op.index, "")
        found.append(Launch(op, record, numbers[op.stream], name, wait_us))
    return found


def on_cores(launch: Launch) -> bool:
    """Whether the op runs as a kernel on cores: SDMA transfers and host calls do not."""
    cores = launch.op.cores
    return is_kernel(launch.op.spec) and cores.aic + cores.aiv > 0


def decimal(value: float) -> str:
    """All digits of a time without an exponent, so that a reader gets the same number."""
    return format(Decimal(repr(value)), "f")
