"""Worker processes: results in the order of their inputs, for any number of workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Processes that live as long as the ``with`` block; with one worker, this process.

    Leaving the block early drops what has not ended.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if kind is not None:
            # Items under way would otherwise run to their end: seconds after a Ctrl-C.
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """``work`` of every item, in the order of the items.

        Raises:
            BrokenProcessPool: a worker was killed (a hang would say nothing).
        """
        if self.count == 1 or (self._pool is None and len(items) < 2):
            return map(work, items)
        if self._pool is None:
            # Spawned processes import only what they need, on every platform alike.
            self._pool = ProcessPoolExecutor(
                self.count,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_leave_interrupts,
            )
        return self._pool.map(work, items)


def _leave_interrupts() -> None:
    # Ctrl-C reaches every process of the terminal; only the first one answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
