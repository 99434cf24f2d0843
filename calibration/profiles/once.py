"""Collectives counted once: a profile lists one as a span and as the kernel that carries it.

The span (``hcom_*``, core HCCL or COMMUNICATION, no stream) covers the whole collective; in
AIV and AICPU modes a kernel on a core carries it and has a row of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace

from calibration.profiles.kernels import Kernel
from twin.report.spans import overlap_us, union

_AICPU = re.compile(r"aicpu", re.IGNORECASE)
_CARRIER = re.compile(r"(aiv|aicpu)_?kernel|^hcom", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CountedKernels:
    """Kernels of a rank by what they count as.

    ``computing`` are launches on cores, ``collectives`` each collective once (its span, or
    its carrier where the profile has no span; marked where vector cores carry it), ``carriers``
    the second rows left out.
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
    # A carrier half of whose time lies in a span has its middle there.
    middles = sorted((k.start_us + k.end_us) / 2 for k in second if not _on_ai_cpu(k))
    marked = [
        replace(span, by_vector_cores=_any_within(middles, span.start_us, span.end_us))
        for span in spans.values()
    ]
    collectives = sorted([*marked, *alone], key=lambda k: (k.start_us, k.line))
    return CountedKernels(tuple(computing), tuple(collectives), tuple(second))


def _on_ai_cpu(carrier: Kernel) -> bool:
    return bool(_AICPU.search(carrier.type) or _AICPU.search(carrier.name))


def _any_within(moments: list[float], first: float, last: float) -> bool:
    """Whether one of the sorted moments lies in the interval, its ends included."""
    place = bisect_left(moments, first)
    return place < len(moments) and moments[place] <= last
