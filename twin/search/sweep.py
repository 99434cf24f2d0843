"""The sweep: every candidate of a space, evaluated in processes, merged in index order."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hardware_models.errors import InputError
from twin.evaluate import evaluate
from twin.search.feasible import Rejection, rejected, rejection
from twin.search.space import Space

# Small enough for a smooth bar and little lost work, large enough to hide the process queue.
_CHUNK = 16


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate: its TPOT and throughput, or why it is out."""

    index: int
    tpot_us: float | None
    tokens_per_s_per_die: float
    rejection: Rejection | None


def evaluate_point(space: Space, index: int) -> Point:
    """Evaluate one candidate by its steady layer period."""
    try:
        schedule = space.schedule(index)
        reason = rejection(schedule, space.model, space.hardware)
        if reason is not None:
            return Point(index, None, 0.0, reason)
        result = evaluate(schedule, space.model, space.hardware, full=False)
    except InputError as error:
        return Point(index, None, 0.0, rejected(error))
    return Point(index, result.tpot_us, float(result.tokens_per_s_per_die), None)


_space: Space | None = None


def _enter(space: Space) -> None:
    # One space a process: candidates travel as bare indices.
    global _space  # noqa: PLW0603
    _space = space


def _chunk(indices: range) -> list[Point]:
    assert _space is not None
    return [evaluate_point(_space, index) for index in indices]


def _chunks(size: int) -> list[range]:
    return [range(start, min(start + _CHUNK, size)) for start in range(0, size, _CHUNK)]


def _results(space: Space, workers: int) -> Iterator[list[Point]]:
    chunks = _chunks(space.size)
    if workers == 1:
        _enter(space)
        yield from map(_chunk, chunks)
        return
    # Spawned processes import only what they need, on every platform alike.
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _enter, (space,)) as pool:
        yield from pool.imap(_chunk, chunks)


def sweep(space: Space, workers: int, folder: Path) -> list[Point]:
    """All points in index order, the same for any number of workers.

    Finished chunks are appended to ``points.jsonl`` in the run folder as they come, so that
    what was evaluated survives an interruption.

    Raises:
        InputError: the run folder cannot be written.
    """
    points: list[Point] = []
    best = float("inf")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    try:
        with (
            (folder / "points.jsonl").open("w", encoding="utf-8") as shard,
            Progress(*columns, console=Console(stderr=True)) as progress,
        ):
            task = progress.add_task("searching", total=space.size, rate="")
            for done in _results(space, workers):
                points += done
                shard.writelines(json.dumps(asdict(point)) + "\n" for point in done)
                shard.flush()
                best = min([best, *(p.tpot_us for p in done if p.tpot_us is not None)])
                rate = f"best TPOT {best / 1e3:.3f} ms" if best < float("inf") else ""
                progress.update(task, advance=len(done), rate=rate)
    except OSError as error:
        raise InputError(
            "output", str(folder), f"a folder that can be written ({error.strerror})"
        ) from None
    return points
