"""What the model issued: one record per op, with the stream and limits it was issued under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from twin.graph.step_graph import PREFETCH_STREAM
from twin.schedule import CoreLimit

MAIN_STREAM = "main"


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op as the model issued it.

    ``aic`` and ``aiv`` are the core limit in force (``None``: all cores of the die),
    ``scope`` the SuperKernel scope.  ``waits`` names the ops of other streams that the op's
    stream was told to wait for before it.  ``prefetch_bytes`` is 0 except for prefetches.
    """

    name: str
    kind: str
    stream: str
    aic: int | None
    aiv: int | None
    scope: str | None
    waits: tuple[str, ...] = ()
    prefetch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """A point on a stream: behind the op ``after``."""

    after: str
    stream: str


class Recorder:
    """Collects records and knows the stream, core limit and scope now in force."""

    def __init__(self) -> None:
        self._records: list[OpRecord] = []
        self._stream = MAIN_STREAM
        self._limit = CoreLimit()
        self._scope: str | None = None
        self._waits: dict[str, list[str]] = {}
        self._last: dict[str, str] = {}

    def take(self) -> tuple[OpRecord, ...]:
        """The records since the last call, in issue order; the recorder starts afresh."""
        records = tuple(self._records)
        self._records.clear()
        self._waits.clear()
        self._last.clear()
        return records

    def replay(self, records: Iterable[OpRecord]) -> None:
        """Note ops that a compiled graph issues as it was told when it was made."""
        self._records.extend(records)

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Ops inside go to stream ``name``."""
        outer, self._stream = self._stream, name
        try:
            yield
        finally:
            self._stream = outer

    @contextmanager
    def core_limit(self, aic: int | None, aiv: int | None) -> Iterator[None]:
        """Ops inside use at most ``aic`` cube and ``aiv`` vector cores (``None``: all)."""
        outer, self._limit = self._limit, CoreLimit(aic=aic, aiv=aiv)
        try:
            yield
        finally:
            self._limit = outer

    @contextmanager
    def super_kernel(self, scope: str | None) -> Iterator[None]:
        """Ops inside belong to SuperKernel ``scope`` (``None``: to none)."""
        outer, self._scope = self._scope, scope
        try:
            yield
        finally:
            self._scope = outer

    def launch(self, name: str, kind: str) -> Event:
        """Record an op on the current stream; the event behind it."""
        waits = tuple(self._waits.pop(self._stream, ()))
        self._records.append(
            OpRecord(name, kind, self._stream, self._limit.aic, self._limit.aiv, self._scope, waits)
        )
        self._last[self._stream] = name
        return Event(name, self._stream)

    def prefetch(self, name: str, after: Event, prefetch_bytes: int) -> None:
        """Record a prefetch: on its own stream, holding no cores, once ``after`` is reached."""
        self._records.append(
            OpRecord(
                name,
                "prefetch",
                PREFETCH_STREAM,
                aic=None,
                aiv=None,
                scope=None,
                waits=(after.after,),
                prefetch_bytes=prefetch_bytes,
            )
        )

    def signal(self) -> Event:
        """The event behind the last op of the current stream."""
        return Event(self._last[self._stream], self._stream)

    def wait(self, event: Event) -> None:
        """Hold the next op of the current stream until ``event``.

        A wait for the own stream is no wait (streams are in order) and leaves no record.
        """
        if event.stream != self._stream:
            self._waits.setdefault(self._stream, []).append(event.after)
