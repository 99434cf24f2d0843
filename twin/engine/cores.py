"""Core pools: the cube and vector cores of one die, granted all or nothing in strict order."""

from __future__ import annotations

from bisect import insort

from twin.graph.step_graph import Op

RequestKey = tuple[float, int, int]
"""(ready time in us, rank of the stream's name, op index): who is served first."""


class CorePool:
    """The cores of one die and the ops that wait for them.

    The front of the queue blocks everybody behind it, also those whose cores are free:
    otherwise a wide op could starve behind a chain of narrow ones.
    """

    __slots__ = ("_queue", "aic_count", "aic_free", "aiv_count", "aiv_free")

    def __init__(self, aic_count: int, aiv_count: int) -> None:
        self.aic_count = aic_count
        self.aiv_count = aiv_count
        self.aic_free = aic_count
        self.aiv_free = aiv_count
        self._queue: list[tuple[RequestKey, Op]] = []

    def ask(self, key: RequestKey, op: Op) -> None:
        """Put ``op`` into the queue; :meth:`grant` serves it."""
        insort(self._queue, (key, op), key=lambda request: request[0])

    def grant(self) -> list[Op]:
        """Take from the front all ops whose cores are free, and hold their cores."""
        served = 0
        for _, op in self._queue:
            if op.cores.aic > self.aic_free or op.cores.aiv > self.aiv_free:
                break
            self.aic_free -= op.cores.aic
            self.aiv_free -= op.cores.aiv
            served += 1
        granted = [op for _, op in self._queue[:served]]
        del self._queue[:served]
        return granted

    def release(self, op: Op) -> None:
        """Give back the cores that ``op`` holds."""
        self.aic_free += op.cores.aic
        self.aiv_free += op.cores.aiv

    def waiting(self) -> tuple[Op, ...]:
        """The ops in the queue, front first."""
        return tuple(op for _, op in self._queue)
