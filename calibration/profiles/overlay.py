"""One Perfetto trace with two profiles one above the other, rebased to their steps' starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from calibration.profiles.kernels import Kernel
from calibration.profiles.profile import RankProfile
from hardware_models.errors import InputError

Side = tuple[str, RankProfile]
"""A title (``measured``, ``simulated``) and a rank of its profile."""


def write_overlay(path: Path, sides: Sequence[Side]) -> Path:
    """Write the first step of each side: a process a side, a thread a stream, us from zero.

    Raises:
        InputError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            for number, event in enumerate(_events(sides)):
                file.write(",\n" if number else "\n")
                file.write(json.dumps(event, allow_nan=False))
            file.write("\n]}\n")
        os.replace(partial, path)
    except OSError as error:
        raise InputError(
            "output", str(path), f"a file that can be written ({error.strerror})"
        ) from None
    return path


def _events(sides: Sequence[Side]) -> Iterator[dict[str, object]]:
    for pid, (title, rank) in enumerate(sides):
        kernels = _first_step(rank)
        origin = min((kernel.start_us for kernel in kernels), default=0.0)
        rows = {name: tid for tid, name in enumerate(_streams(kernels))}
        name = {"name": f"{title}: rank {rank.rank}"}
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": name}
        for stream, tid in rows.items():
            where = {"ph": "M", "pid": pid, "tid": tid}
            yield {**where, "name": "thread_name", "args": {"name": stream}}
            yield {**where, "name": "thread_sort_index", "args": {"sort_index": tid}}
        for kernel in kernels:
            yield {
                "ph": "X",
                "name": kernel.name,
                "cat": kernel.type or "kernel",
                "pid": pid,
                "tid": rows[_stream(kernel)],
                "ts": kernel.start_us - origin,
                "dur": kernel.duration_us,
                "args": {"type": kernel.type, "core": kernel.core, "cores": kernel.cores},
            }


def _first_step(rank: RankProfile) -> list[Kernel]:
    step = rank.steps[0]
    counted = rank.counted
    kernels = (*counted.computing, *counted.collectives)
    return sorted((k for k in kernels if k.step == step), key=lambda k: (k.start_us, k.line))


def _stream(kernel: Kernel) -> str:
    return "collectives" if kernel.is_communication else f"stream {kernel.stream}".strip()


def _streams(kernels: Iterable[Kernel]) -> list[str]:
    return sorted({_stream(kernel) for kernel in kernels})
