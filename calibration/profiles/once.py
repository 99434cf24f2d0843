"""Collectives counted once: a profile lists one as a span and as the kernel that carries it.

The span (``hcom_*``, core HCCL or COMMUNICATION, no stream) covers the whole collective; in
AIV and AICPU modes a kernel on a core carries it and has a row of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from calibration.profiles.kernels import Kernel

_CARRIER = re.compile(r"(aiv|aicpu)_?kernel|^hcom", re.IGNORECASE)

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CountedKernels:
    """Kernels of a rank by what they count as.

    ``computing`` are launches on cores, ``collectives`` each collective once (its span, or
    its carrier where the profile has no span), ``carriers`` the second rows left out.
    """

    computing: tuple[Kernel, ...]
    collectives: tuple[Kernel, ...]
    carriers: tuple[Kernel, ...]


def is_carrier(kernel: Kernel) -> bool:
    """Whether a row is a kernel that carries out a collective."""
    return not kernel.is_communication and bool(
        _CARRIER.search(kernel.type) or _CARRIER.search(kernel.name)
    )


def count_once(kernels: Iterable[Kernel]) -> CountedKernels:
    """Split a rank's rows; a carrier half of whose time lies in a span is that span's."""
    computing: list[Kernel] = []
    carriers: list[Kernel] = []
    spans: dict[tuple[str, float, float], Kernel] = {}
    for kernel in kernels:
        if kernel.is_communication:
            spans.setdefault((kernel.name, kernel.start_us, kernel.duration_us), kernel)
        elif is_carrier(kernel):
            carriers.append(kernel)
        else:
            computing.append(kernel)
    covered = union((k.start_us, k.end_us) for k in spans.values())
    second: list[Kernel] = []
    alone: list[Kernel] = []
    for kernel in carriers:
        inside = overlap_us(covered, kernel.start_us, kernel.end_us)
        listed_twice = bool(covered) and inside >= kernel.duration_us / 2
        (second if listed_twice else alone).append(kernel)
    collectives = sorted([*spans.values(), *alone], key=lambda k: (k.start_us, k.line))
    return CountedKernels(tuple(computing), tuple(collectives), tuple(second))


def union(spans: Iterable[Span]) -> list[Span]:
    """Spans joined where they touch, in order, none empty."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def overlap_us(joined: Sequence[Span], start: float, end: float) -> float:
    """How much of ``start`` .. ``end`` lies in joined spans."""
    total = 0.0
    index = max(0, bisect_right(joined, (start, float("inf"))) - 1)
    while index < len(joined) and joined[index][0] < end:
        low, high = joined[index]
        total += max(0.0, min(high, end) - max(low, start))
        index += 1
    return total


def common(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """What lies in both of two lists of joined spans."""
    found: list[Span] = []
    i = j = 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low < high:
            found.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def length_us(joined: Iterable[Span]) -> float:
    """Length of joined spans in all."""
    return sum(end - start for start, end in joined)


def gaps(joined: Sequence[Span]) -> list[Span]:
    """The spans between joined spans."""
    return [(before[1], after[0]) for before, after in pairwise(joined)]
