"""Eager: what the host launches on the stand-ins, read back from their log."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from typing_extensions import override

from runtime_npu.backends.npu_issue import Listener
from runtime_npu.lower.lowered import WAITED_FOR, LoweredOp, one, ranks_label
from runtime_npu.lower.races import Races

SETUP = "before the first op"
AGAIN = "again"
"""What is told before it was to make things ready."""


def note(line: str) -> None:
    """Append ``line`` to the stand-ins' log, among what they note themselves."""
    ctypes.CDLL(None).standin_note(b"%s", line.encode())


class Marks(Listener):
    """Marks in the log where the launches of each op begin and end; ``name`` is the last one."""

    name = SETUP

    @override
    def launched(self, name: str) -> None:
        self.name = name
        note(f"op {name}")

    @override
    def done(self) -> None:
        note("done")


def read_launches(lines: Iterable[str], rank: int, races: Races) -> list[LoweredOp]:
    """The ops of ``rank`` whose launches ``lines`` of the log tell, in order."""
    told = list(lines)
    labels = {}
    for line in told:
        word, _, rest = line.partition(" ")
        if word == "stream":
            handle, _, label = rest.partition(" ")
            labels[handle] = label
    reader = _Reader(labels, rank)
    for line in told:
        reader.read(*line.split())
    return [replace(op, races=races.faults(op.name)) for op in reader.ops()]


@dataclass(slots=True)
class _Stream:
    """What a stream was given so far.

    HCCL has streams of its own: ``lent_by`` is the scheduled one that it works for, until that
    waits for it.
    """

    last: str | None = None
    waits: list[str] = field(default_factory=list)
    limit: dict[str, int] = field(default_factory=dict)
    lent_by: str | None = None


@dataclass(frozen=True, slots=True)
class _Launch:
    """One launch of an op: a kernel, or a collective."""

    call: str
    stream: str
    limit: tuple[int | None, int | None]


@dataclass(slots=True)
class _Op:
    """What an op's marks enclose."""

    launches: list[_Launch] = field(default_factory=list)
    glue: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    group: str | None = None
    shape: tuple[int, ...] = ()


class _Reader:
    """Follows the log as the device would."""

    def __init__(self, labels: dict[str, str], rank: int) -> None:
        self._labels, self._rank = labels, rank
        self._streams: dict[str, _Stream] = {}
        self._events: dict[str, tuple[str, str | None]] = {}
        self._groups: dict[str, str] = {}
        self._ops: dict[str, _Op] = {SETUP: _Op()}
        self._name, self._is_glue = SETUP, False

    def read(self, word: str, *rest: str) -> None:
        """One line of the log."""
        if word == AGAIN:
            self._ops, self._name = {SETUP: _Op()}, SETUP
        elif word == "op":
            self._name, self._is_glue = rest[0], False
            self._ops.setdefault(self._name, _Op())
        elif word == "done":
            self._is_glue = True
        elif word == "exchange":
            self._ops[self._name].group = " ".join(rest)
        elif word == "shape" and not self._is_glue:
            self._ops[self._name].shape = tuple(map(int, rest))
        elif word == "sync":
            self._launch(rest[0], WAITED_FOR)
        elif word in ("launch", "collective"):
            self._launch(*rest)
        else:
            self._told(word, *rest)

    def _told(self, word: str, *rest: str) -> None:
        """A line that launches nothing."""
        if word == "group":
            self._group(*rest)
        elif word == "record":
            self._events[rest[1]] = rest[0], self._stream(rest[0]).last
        elif word == "wait":
            self._wait(*rest)
        elif word == "limit":
            limit = self._stream(rest[0]).limit
            if rest[1] == "reset":
                limit.clear()
            else:
                limit[rest[1]] = int(rest[2])

    def ops(self) -> list[LoweredOp]:
        """All that was read."""
        return [
            _lowered(name, op) for name, op in self._ops.items() if op.launches and name != SETUP
        ]

    def _stream(self, handle: str) -> _Stream:
        return self._streams.setdefault(handle, _Stream())

    def _group(self, handle: str, size: str, index: str) -> None:
        """HCCL knows how many ranks a group has: but for pairs they are consecutive."""
        first = self._rank - int(index)
        self._groups[handle] = ranks_label(range(first, first + int(size)))

    def _wait(self, handle: str, event: str) -> None:
        source, last = self._events[event]
        stream = self._stream(handle)
        if handle not in self._labels:
            stream.lent_by = source
        elif source not in self._labels:
            self._stream(source).lent_by = None
        elif source != handle and last is not None:
            stream.waits.append(last)

    def _launch(self, handle: str, call: str, group: str | None = None) -> None:
        own = handle
        if handle not in self._labels:
            own = self._stream(handle).lent_by or handle
        for other in self._streams.values():
            if other.lent_by == handle:
                own = f"{own}, which has not waited for a collective"
        op, stream = self._ops[self._name], self._stream(own)
        if self._is_glue:
            op.glue.append(call)
            return
        limit = stream.limit.get("cube"), stream.limit.get("vector")
        op.launches.append(_Launch(call, self._labels.get(own, own), limit))
        op.waits += stream.waits
        stream.waits, stream.last = [], self._name
        if group is not None and not (op.group or "").startswith("rank "):
            op.group = self._groups[group]


def _lowered(name: str, op: _Op) -> LoweredOp:
    aic, aiv = one(name, "core limits", (launch.limit for launch in op.launches))
    # An op on several streams is none of the schedule's: the comparison shows it.
    streams = dict.fromkeys(launch.stream for launch in op.launches)
    return LoweredOp(
        name=name,
        calls=tuple(launch.call for launch in op.launches),
        glue=tuple(op.glue),
        stream=" and ".join(streams),
        aic=aic,
        aiv=aiv,
        scope=None,
        waits=tuple(dict.fromkeys(op.waits)),
        prefetch_bytes=0,
        group=op.group,
        shape=op.shape,
    )
