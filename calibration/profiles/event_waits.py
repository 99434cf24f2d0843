"""Event waits by what they waited for: another stream, an exchange and its last rank."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calibration.profiles.kernels import Kernel
from calibration.profiles.mapping import type_of
from calibration.profiles.profile import RankProfile
from calibration.profiles.waits import EventWait

# An event is recorded within this time of its kernel's end, on either side of it.
_BEFORE_US = 20.0
_AFTER_US = 1.0

UNKNOWN = "the host, or work that was not recorded"

_EXCHANGE = re.compile(r"MoeDistribute(Dispatch|Combine)(V\d)?")

_Launch = tuple[str, str, int]
"""A launch of an exchange, the same on all of its ranks: step, name, and its place in the step."""


@dataclass(frozen=True, slots=True)
class WaitCause:
    """Waits of one stream of one rank for one cause; ``by_rank`` came last to its exchange."""

    rank: int
    stream: str
    cause: str
    by_rank: int | None
    count: int
    total_us: float


class WaitTally:
    """Adds up the waits of rank after rank; who came last is known when all are read.

    ``last_rank`` names the last rank of collectives.  Of a dispatch or combine it is the one
    that began last, the ranks' clocks taken as one.
    """

    def __init__(self, last_rank: Mapping[str, int]) -> None:
        self._last_rank = last_rank
        self._begins: dict[_Launch, dict[int, float]] = {}
        self._waits: dict[tuple[int, str, str, int | None, _Launch | None], tuple[int, float]] = {}

    def add(self, rank: RankProfile, waits: Iterable[EventWait]) -> None:
        """Count a rank's waits by cause; waits that cost nothing are left out.

        The cause of a wait is the kernel of another stream, or the collective, that ended last
        before the wait did (up to 20 us before it, or 1 us behind).
        """
        launches = self._exchanges(rank)
        kernels = sorted(
            (*rank.counted.computing, *rank.counted.collectives), key=lambda kernel: kernel.end_us
        )
        ends = [kernel.end_us for kernel in kernels]
        for wait in waits:
            if wait.duration_us > 0:
                found = _cause(wait, kernels, ends)
                launch = launches.get(found.line) if found else None
                key = (rank.rank, wait.stream, *self._named(found, launch), launch)
                count, total_us = self._waits.get(key, (0, 0.0))
                self._waits[key] = (count + 1, total_us + wait.duration_us)

    def rows(self) -> list[WaitCause]:
        """All waits by rank, stream, cause and the rank that came last, the longest first."""
        last = {
            launch: max(begins, key=lambda rank: begins[rank])
            for launch, begins in self._begins.items()
            if len(begins) > 1
        }
        sums: dict[tuple[int, str, str, int | None], tuple[int, float]] = {}
        for (rank, stream, cause, by, launch), (count, total_us) in self._waits.items():
            key = (rank, stream, cause, by if launch is None else last.get(launch))
            before = sums.get(key, (0, 0.0))
            sums[key] = (before[0] + count, before[1] + total_us)
        rows = [WaitCause(*key, *values) for key, values in sums.items()]
        return sorted(rows, key=lambda row: -row.total_us)

    def _exchanges(self, rank: RankProfile) -> dict[int, _Launch]:
        """The rank's dispatches and combines by line, noted with their begins."""
        counts: dict[tuple[str, str], int] = {}
        found = {}
        for kernel in rank.counted.computing:
            if _EXCHANGE.fullmatch(type_of(kernel)):
                named = (kernel.step, kernel.name)
                counts[named] = counts.get(named, 0) + 1
                launch = found[kernel.line] = (*named, counts[named])
                begins = self._begins.setdefault(launch, {})
                begins[rank.rank] = rank.origin_us + kernel.start_us
        return found

    def _named(self, kernel: Kernel | None, launch: _Launch | None) -> tuple[str, int | None]:
        if kernel is None:
            return UNKNOWN, None
        if kernel.is_communication:
            return f"collective {kernel.type or kernel.name}", self._last_rank.get(kernel.name)
        if launch is not None:
            return f"exchange {type_of(kernel)} on stream {kernel.stream}", None
        return f"stream {kernel.stream}", None


def _cause(wait: EventWait, kernels: list[Kernel], ends: list[float]) -> Kernel | None:
    at = bisect_right(ends, wait.end_us + _AFTER_US) - 1
    while at >= 0 and ends[at] >= wait.end_us - _BEFORE_US:
        kernel = kernels[at]
        if kernel.stream != wait.stream and ends[at] > wait.start_us:
            return kernel
        at -= 1
    return None
