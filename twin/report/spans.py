"""Spans of time: joined, cut with each other, measured."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

Span = tuple[float, float]
"""Start and end in us."""


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
