"""A process of its own for each measurement: memory is given back, and its peak is its own."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def in_own_process(
    function: Callable[..., Any], *arguments: object, start: Callable[[], None] | None = None
) -> Any:
    """``function`` in a new process, behind ``start``."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=start) as pool:
        return pool.submit(function, *arguments).result()


def peak_mb() -> float:
    """The largest memory that this process has had, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would begin at the peak of the process that started this one
        lines = status.read_text("ascii").splitlines()
        return (
            next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6
        )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6
