"""Races of a step: what a stream reads of another one too early, or without keeping it.

In the order in which the host makes the calls, a stream knows of another one's calls up to the
last event of that stream that it waited for.  Memory that a call frees goes back to the stream
that wrote it, which may write it anew at once: whoever else reads it must be recorded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Written:
    """The ``place``-th call on ``stream``, of op ``name``."""

    name: str
    stream: str
    place: int


@dataclass(slots=True)
class Races:
    """Follows calls and events; what is read and written goes by any name that stays the same."""

    _clocks: dict[str, dict[str, int]] = field(default_factory=dict)
    _events: dict[Hashable, dict[str, int]] = field(default_factory=dict)
    _written: dict[Hashable, Written] = field(default_factory=dict)
    _late: dict[str, list[str]] = field(default_factory=dict)
    _reads: list[tuple[str, Hashable, Written, str]] = field(default_factory=list)
    _kept: set[tuple[Hashable, str]] = field(default_factory=set)

    def record(self, event: Hashable, stream: str) -> None:
        """``event`` is behind what ``stream`` was given so far."""
        self._events[event] = dict(self._clock(stream))

    def wait(self, event: Hashable, stream: str) -> None:
        """``stream`` goes on behind ``event``."""
        clock = self._clock(stream)
        for other, place in self._events.get(event, {}).items():
            clock[other] = max(clock.get(other, 0), place)

    def keep(self, what: Hashable, stream: str) -> None:
        """The memory of ``what`` is recorded to be read on ``stream``."""
        self._kept.add((what, stream))

    def call(
        self,
        name: str,
        stream: str,
        reads: Iterable[Hashable],
        writes: Iterable[Hashable],
        *,
        uses_data: bool = True,
    ) -> None:
        """A call of op ``name`` on ``stream``.

        ``uses_data``: it reads what it is given, and does not only come behind it.
        """
        clock = self._clock(stream)
        for what in reads:
            written = self._written.get(what)
            if written is None or written.stream == stream:
                continue
            if clock.get(written.stream, 0) < written.place:
                text = f"reads {written.name} of {written.stream} without waiting for it"
                self._late.setdefault(name, []).append(text)
            if uses_data:
                self._reads.append((name, what, written, stream))
        clock[stream] = clock.get(stream, 0) + 1
        for what in writes:
            self._written[what] = Written(name, stream, clock[stream])

    def early(self, name: str) -> tuple[str, ...]:
        """What op ``name`` read without waiting for it."""
        return tuple(dict.fromkeys(self._late.get(name, ())))

    def faults(self, name: str) -> tuple[str, ...]:
        """All that is wrong with op ``name``, when all calls were made."""
        return (*self.early(name), *self.freed(name))

    def freed(self, name: str) -> tuple[str, ...]:
        """What op ``name`` read that nobody kept for it, when all calls were made."""
        return tuple(
            dict.fromkeys(
                f"reads {written.name} of {written.stream}, whose memory is not kept for {stream}"
                for reader, what, written, stream in self._reads
                if reader == name and (what, stream) not in self._kept
            )
        )

    def _clock(self, stream: str) -> dict[str, int]:
        return self._clocks.setdefault(stream, {})
