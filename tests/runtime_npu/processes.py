"""Watching processes of other programs from a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

SOON_S = 20.0
"""Far more than ending takes, far less than any of the waits that would hold a rank."""


def until(is_true: Callable[[], bool], limit_s: float = SOON_S) -> None:
    """Wait until ``is_true``, and fail where it does not become so."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return fields is not None and fields[0] != "Z"


def running_in_group(group: int) -> int:
    """How many processes of a process group run."""
    every = [_stat(path) for path in Path("/proc").glob("[0-9]*/stat")]
    return sum(f is not None and f[0] != "Z" and int(f[2]) == group for f in every)


def _stat(path: Path) -> list[str] | None:
    """State, parent, process group, ...: the fields behind the name."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return None
