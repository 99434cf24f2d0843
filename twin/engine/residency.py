"""Residency: which bytes of which weights lie in the L2 of one die (rule 7 of the engine)."""

from __future__ import annotations

from collections.abc import Sequence

from hardware_models.demand import WeightRead
from twin.engine.fluid import Body


class _Entry:
    """Bytes that came by one prefetch, or (``weight`` None) by streaming traffic."""

    __slots__ = ("arrived", "bytes", "growing", "weight")

    def __init__(self, weight: str | None, *, growing: bool) -> None:
        self.weight = weight
        self.growing = growing
        self.bytes = 0.0
        self.arrived = 0.0


class Residency:
    """The L2 of one die: entries, the one opened first in front, and the prefetches that run.

    Arrivals are credited only when something reads, pollutes or ends, all running prefetches
    at once and eviction after them.  That gives what continuous arrival and eviction would
    give, because arrivals change no entry's place.
    """

    __slots__ = ("_entries", "_fills", "_read", "capacity_bytes", "held_bytes")

    def __init__(self, capacity_bytes: float) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0.0
        self._entries: list[_Entry] = []
        self._fills: dict[Body, tuple[_Entry, WeightRead]] = {}
        self._read: set[str] = set()

    def was_read(self, weight: str) -> bool:
        """Whether the body of a reader of ``weight`` has started on this die."""
        return weight in self._read

    def start_fill(self, body: Body, fills: WeightRead) -> None:
        """Open a new, youngest entry that grows with the progress of ``body``."""
        entry = _Entry(fills.weight, growing=True)
        self._entries.append(entry)
        self._fills[body] = (entry, fills)

    def end_fill(self, body: Body, now_us: float) -> None:
        """What ``body`` has brought so far stays; nothing more arrives."""
        self._credit(now_us)
        self._fills.pop(body)[0].growing = False

    def is_filling(self, body: Body) -> bool:
        """Whether ``body`` is a prefetch that runs."""
        return body in self._fills

    def fills_of(self, reads: Sequence[WeightRead]) -> list[Body]:
        """The running prefetches of the weights in ``reads``."""
        weights = {read.weight for read in reads}
        return [body for body, (_, fills) in self._fills.items() if fills.weight in weights]

    def read(self, reads: Sequence[WeightRead], now_us: float) -> float:
        """Remove the bytes of these weights; how many of the bytes read were here."""
        self._credit(now_us)
        resident = 0.0
        for read in reads:
            resident += min(self._take(read.weight), read.bytes)
            self._read.add(read.weight)
        return resident

    def pollute(self, amount_bytes: float, now_us: float) -> None:
        """Let streaming traffic enter as the youngest, anonymous bytes."""
        self._credit(now_us)
        if self._entries and self._entries[-1].weight is None:
            entry = self._entries[-1]
        else:
            entry = _Entry(None, growing=False)
            self._entries.append(entry)
        entry.bytes += amount_bytes
        self.held_bytes += amount_bytes
        self._evict()

    def _credit(self, now_us: float) -> None:
        for body, (entry, fills) in self._fills.items():
            arrived = body.progress(now_us) * fills.bytes
            entry.bytes += arrived - entry.arrived
            self.held_bytes += arrived - entry.arrived
            entry.arrived = arrived
        self._evict()

    def _take(self, weight: str) -> float:
        taken = 0.0
        for entry in self._entries:
            if entry.weight == weight:
                taken += entry.bytes
                entry.bytes = 0.0
        if taken > 0.0:
            self._forget_empty()
            # Summed anew, since taking away what was added in other parts could go below 0.
            self.held_bytes = sum(entry.bytes for entry in self._entries)
        return taken

    def _evict(self) -> None:
        excess = self.held_bytes - self.capacity_bytes
        if excess <= 0.0:
            return
        for entry in self._entries:
            lost = min(entry.bytes, excess)
            entry.bytes -= lost
            excess -= lost
            if excess <= 0.0:
                break
        self.held_bytes = self.capacity_bytes
        self._forget_empty()

    def _forget_empty(self) -> None:
        self._entries = [entry for entry in self._entries if entry.bytes > 0.0 or entry.growing]
