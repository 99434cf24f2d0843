"""Work lists in the kernel: plain arrays with a length kept elsewhere."""

from __future__ import annotations

import numpy as np

from twin.engine.compiled._jit import part


@part
def copy(to: np.ndarray, values: np.ndarray) -> None:
    """Copy all values; a slice assignment would allocate."""
    for i in range(len(values)):
        to[i] = values[i]


@part
def fill(to: np.ndarray, value: float) -> None:
    """Set all places to ``value``."""
    for i in range(len(to)):
        to[i] = value


@part
def push(items: np.ndarray, counts: np.ndarray, which: int, item: int) -> None:
    """Put ``item`` on a work list, whose length is ``counts[which]``."""
    items[counts[which]] = item
    counts[which] += 1


@part
def sort_ints(values: np.ndarray, count: int) -> None:
    """Sort the first ``count`` values in place (Shell's method: quick where nearly sorted)."""
    if count < 2:
        return
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value = values[i]
            j = i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3
