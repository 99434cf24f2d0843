"""The sweep: every candidate of a space, evaluated in processes, merged in index order."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hardware_models.errors import DeadlockError, InputError
from twin.evaluate import latencies, throughput_of
from twin.search.feasible import Rejection, rejected, rejection
from twin.search.pool import ordered_map
from twin.search.space import Space

# Small enough for a smooth bar and little lost work, large enough to hide the process queue.
_CHUNK = 16


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate: its latency (TPOT or TTFT) and throughput, or why it is out."""

    index: int
    latency_us: float | None
    tokens_per_s_per_die: float
    rejection: Rejection | None


def evaluate_point(space: Space, index: int) -> Point:
    """Evaluate one candidate by its steady layer period.

    Raises:
        InputError: the twin cannot simulate it, or the die lacks a parameter: no verdict on
            the candidate.
    """
    try:
        schedule = space.schedule(index)
    except InputError as error:
        return Point(index, None, 0.0, rejected(error))
    reason = rejection(schedule, space.model, space.hardware)
    if reason is not None:
        return Point(index, None, 0.0, reason)
    try:
        (latency_us,) = latencies(schedule, space.model, [space.hardware])
    except DeadlockError as error:
        return Point(index, None, 0.0, Rejection("deadlock", str(error), 1.0))
    return Point(index, latency_us, throughput_of(schedule, latency_us), None)


def _chunk(space: Space, indices: range) -> list[Point]:
    return [evaluate_point(space, index) for index in indices]


def _chunks(size: int) -> list[range]:
    return [range(start, min(start + _CHUNK, size)) for start in range(0, size, _CHUNK)]


def sweep(space: Space, workers: int, folder: Path) -> list[Point]:
    """All points in index order, the same for any number of workers.

    Finished chunks are appended to ``points.jsonl`` in the run folder as they come, so that
    what was evaluated survives an interruption.

    Raises:
        InputError: the run folder cannot be written.
    """
    points: list[Point] = []
    best, began = float("inf"), time.perf_counter()
    name = space.base.workload.latency_name
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[so_far]}"),
    )
    try:
        with (
            (folder / "points.jsonl").open("w", encoding="utf-8") as shard,
            Progress(*columns, console=Console(stderr=True)) as progress,
            closing(ordered_map(partial(_chunk, space), _chunks(space.size), workers)) as chunks,
        ):
            task = progress.add_task("searching", total=space.size, so_far="")
            for done in chunks:
                points += done
                shard.writelines(json.dumps(asdict(point)) + "\n" for point in done)
                shard.flush()
                best = min([best, *(p.latency_us for p in done if p.latency_us is not None)])
                rate = f"{len(points) / (time.perf_counter() - began):.0f}/s"
                so_far = f"{rate}, best {name} {best / 1e3:.3f} ms" if best < float("inf") else rate
                progress.update(task, advance=len(done), so_far=so_far)
    except OSError as error:
        raise InputError(
            "output", str(folder), f"a folder that can be written ({error.strerror})"
        ) from None
    return points
