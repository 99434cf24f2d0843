"""Event waits by what they waited for: another stream, a collective and its last rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calibration.profiles.kernels import Kernel
from calibration.profiles.profile import RankProfile
from calibration.profiles.waits import EventWait

# An event is recorded within this time of its kernel's end, on either side of it.
_BEFORE_US = 20.0
_AFTER_US = 1.0

UNKNOWN = "the host, or work that was not recorded"


@dataclass(frozen=True, slots=True)
class WaitCause:
    """Waits of one stream of one rank for one cause; ``by_rank`` came last to its collective."""

    rank: int
    stream: str
    cause: str
    by_rank: int | None
    count: int
    total_us: float


def wait_causes(
    rank: RankProfile, waits: Iterable[EventWait], last_rank: Mapping[str, int]
) -> list[WaitCause]:
    """Waits by cause, the longest first; waits that cost nothing are left out.

    The cause of a wait is the kernel of another stream, or the collective, that ended last
    before the wait did (up to 20 us before it, or 1 us behind).
    """
    kernels = sorted(
        (*rank.counted.computing, *rank.counted.collectives), key=lambda kernel: kernel.end_us
    )
    ends = [kernel.end_us for kernel in kernels]
    groups: dict[tuple[str, str, int | None], tuple[int, float]] = {}
    for wait in waits:
        if wait.duration_us <= 0:
            continue
        found = _cause(wait, kernels, ends)
        key = (wait.stream, *_named(found, last_rank))
        count, total_us = groups.get(key, (0, 0.0))
        groups[key] = (count + 1, total_us + wait.duration_us)
    causes = [
        WaitCause(rank.rank, stream, cause, by, count, total_us)
        for (stream, cause, by), (count, total_us) in groups.items()
    ]
    return sorted(causes, key=lambda cause: -cause.total_us)


def _cause(wait: EventWait, kernels: list[Kernel], ends: list[float]) -> Kernel | None:
    at = bisect_right(ends, wait.end_us + _AFTER_US) - 1
    while at >= 0 and ends[at] >= wait.end_us - _BEFORE_US:
        kernel = kernels[at]
        if kernel.stream != wait.stream and ends[at] > wait.start_us:
            return kernel
        at -= 1
    return None


def _named(kernel: Kernel | None, last_rank: Mapping[str, int]) -> tuple[str, int | None]:
    if kernel is None:
        return UNKNOWN, None
    if kernel.is_communication:
        return f"collective {kernel.type or kernel.name}", last_rank.get(kernel.name)
    return f"stream {kernel.stream}", None
