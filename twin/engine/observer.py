"""Observer: what a run tells while it goes on, and counters for a trace made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Load = tuple[str, int, float]
"""(resource, die, bytes of the whole body); resources: hbm, l2, sdma, link_out, link_in."""


class Observer(Protocol):
    """Called at every change, in the order in which the engine makes them."""

    def speed(self, time_us: float, op: int, speed_per_us: float, loads: Sequence[Load]) -> None:
        """The body of ``op`` goes on at this speed (bodies per us); 0 when it has ended."""

    def cores(self, time_us: float, die: int, aic: int, aiv: int) -> None:
        """The cores of ``die`` that are held from now on."""

    def resident(self, time_us: float, die: int, bytes_: float) -> None:
        """The bytes in the L2 of ``die`` after something entered, was read or evicted."""


class Counters:
    """An :class:`Observer` that keeps step functions: (die, counter) -> [(time_us, value)].

    Counters are ``aic`` and ``aiv`` (cores held), ``l2_resident_bytes``, and ``hbm_gbps``,
    ``l2_gbps``, ``sdma_gbps``, ``link_out_gbps``, ``link_in_gbps`` (rates granted).  A value
    holds until the next time in its list; one list has each time once.
    """

    def __init__(self) -> None:
        self.series: dict[tuple[int, str], list[tuple[float, float]]] = {}
        self._speeds: dict[tuple[int, str], dict[int, float]] = {}

    def speed(self, time_us: float, op: int, speed_per_us: float, loads: Sequence[Load]) -> None:
        """See :class:`Observer`."""
        for resource, die, amount in loads:
            granted = self._speeds.setdefault((die, resource), {})
            if speed_per_us > 0.0:
                granted[op] = amount * speed_per_us / 1000.0
            else:
                granted.pop(op, None)
            self._put((die, f"{resource}_gbps"), time_us, sum(granted.values()))

    def cores(self, time_us: float, die: int, aic: int, aiv: int) -> None:
        """See :class:`Observer`."""
        self._put((die, "aic"), time_us, aic)
        self._put((die, "aiv"), time_us, aiv)

    def resident(self, time_us: float, die: int, bytes_: float) -> None:
        """See :class:`Observer`."""
        self._put((die, "l2_resident_bytes"), time_us, bytes_)

    def _put(self, key: tuple[int, str], time_us: float, value: float) -> None:
        series = self.series.setdefault(key, [])
        if series and series[-1][0] == time_us:
            series.pop()
        if not series or series[-1][1] != value:
            series.append((time_us, value))
