"""Worker processes: results in the order of their inputs, for any number of workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered_map(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Generator[Result, None, None]:
    """``work`` of every item, in order; with one worker in this process.

    Close the generator when leaving it early: what has not ended is then dropped.

    Raises:
        BrokenProcessPool: a worker was killed (a hang would say nothing).
    """
    if workers == 1 or len(items) < 2:
        yield from map(work, items)
        return
    # Spawned processes import only what they need, on every platform alike.
    pool = ProcessPoolExecutor(
        min(workers, len(items)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_leave_interrupts,
    )
    try:
        yield from pool.map(work, items)
    except BaseException:
        # Items under way would otherwise run to their end: seconds after a Ctrl-C.
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    # Ctrl-C reaches every process of the terminal; only the first one answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
