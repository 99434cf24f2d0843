"""The ops of a simulated die as a profiler would list them: ordered, numbered, named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from twin.engine.timeline import OpRecord
from twin.graph.step_graph import Op
from twin.report.ascend_rows import collective_of, is_kernel

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


class CollectiveNames:
    """``hcom_allGather__000_N_1`` by op; the members of one collective share a name.

    N counts collectives in the order in which they are asked for.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, op: Op) -> str:
        """The name of an op's collective; empty where it is none."""
        title = collective_of(op.spec)
        if not title:
            return ""
        key = op.rendezvous or f"{op.die} {op.name}"
        number = self._numbers.setdefault(key, len(self._numbers))
        return f"{title}__000_{number}_1"


def launches_of(
    ops: Sequence[Op],
    records: Mapping[int, OpRecord],
    streams: Sequence[str],
    names: CollectiveNames,
) -> list[Launch]:
    """A die's ops by start; the wait is the time since its stream's last op ended.

    ``records`` holds those of the ops by their index.
    """
    numbers = {name: FIRST_STREAM + i for i, name in enumerate(streams)}
    named = {op.index: names.of(op) for op in ops}
    ends: dict[str, float] = {}
    found = []
    for op in sorted(ops, key=lambda op: (records[op.index].start_us, op.index)):
        record = records[op.index]
        wait_us = max(0.0, record.start_us - ends.get(op.stream, record.start_us))
        ends[op.stream] = record.end_us
        found.append(Launch(op, record, numbers[op.stream], named[op.index], wait_us))
    return found


def on_cores(launch: Launch) -> bool:
    """Whether the op runs as a kernel on cores: SDMA transfers and host calls do not."""
    cores = launch.op.cores
    return is_kernel(launch.op.spec) and cores.aic + cores.aiv > 0


def decimal(value: float) -> str:
    """All digits of a time without an exponent, so that a reader gets the same number."""
    return format(Decimal(repr(value)), "f")
