"""Races of a step: what a stream reads of another one too early, or without keeping it.

In the order in which the host makes the calls, a stream knows of another one's calls up to the
last event of that stream that it waited for.  Memory that nobody uses any more goes back to the
stream that it came from, whose next call may write it anew: by then that stream must know of all
who read it, or the memory must be recorded for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Written:
    """The ``place``-th call on ``stream``, of op ``name``."""

    name: str
    stream: str
    place: int


@dataclass(frozen=True, slots=True)
class Read:
    """Op ``name`` read ``what`` of ``written`` in the ``place``-th call on ``stream``."""

    name: str
    what: Hashable
    written: Written
    stream: str
    place: int


@dataclass(slots=True)
class Races:
    """Follows calls and events; what is read and written goes by any name that stays the same."""

    _clocks: dict[str, dict[str, int]] = field(default_factory=dict)
    _events: dict[Hashable, dict[str, int]] = field(default_factory=dict)
    _written: dict[Hashable, Written] = field(default_factory=dict)
    _late: dict[str, list[str]] = field(default_factory=dict)
    _reads: list[Read] = field(default_factory=list)
    _from: dict[Hashable, str] = field(default_factory=dict)
    _last_use: dict[Hashable, int] = field(default_factory=dict)
    _calls: dict[str, list[tuple[int, dict[str, int]]]] = field(default_factory=dict)
    _time: int = 0
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
        self._time += 1
        self._calls.setdefault(stream, []).append((self._time, dict(clock)))
        place = clock.get(stream, 0) + 1
        for what in reads:
            if uses_data:
                self._last_use[what] = self._time
            written = self._written.get(what)
            if written is None or written.stream == stream:
                continue
            if clock.get(written.stream, 0) < written.place:
                text = f"reads {written.name} of {written.stream} without waiting for it"
                self._late.setdefault(name, []).append(text)
            if uses_data:
                self._reads.append(Read(name, what, written, stream, place))
        clock[stream] = place
        for what in writes:
            self._written[what] = Written(name, stream, place)
            self._from.setdefault(what, stream)
            self._last_use[what] = self._time

    def early(self, name: str) -> tuple[str, ...]:
        """What op ``name`` read without waiting for it."""
        return tuple(dict.fromkeys(self._late.get(name, ())))

    def faults(self, name: str) -> tuple[str, ...]:
        """All that is wrong with op ``name``, when all calls were made."""
        return (*self.early(name), *self.freed(name))

    def freed(self, name: str) -> tuple[str, ...]:
        """What op ``name`` read that may be gone by then, when all calls were made."""
        return tuple(
            dict.fromkeys(
                f"reads {read.written.name} of {read.written.stream}, whose memory is not kept "
                f"for {read.stream}"
                for read in self._reads
                if read.name == name and self._may_be_gone(read)
            )
        )

    def _may_be_gone(self, read: Read) -> bool:
        home = self._from[read.what]
        if home == read.stream or (read.what, read.stream) in self._kept:
            return False
        calls = self._calls[home]
        following = bisect_right(calls, self._last_use[read.what], key=lambda call: call[0])
        if following == len(calls):
            return False
        _, known = calls[following]
        return known.get(read.stream, 0) < read.place

    def _clock(self, stream: str) -> dict[str, int]:
        return self._clocks.setdefault(stream, {})
