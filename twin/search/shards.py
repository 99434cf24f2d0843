"""What a search has explored, on disk as it comes: Parquet files, a shard for each task.

A shard lands in one piece under the name of its task, so that a search that was killed finds
what it had done: nothing is lost, nothing done twice.  Shards hold the same bytes whoever
explored them and in whatever order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hardware_models.errors import InputError
from twin.choices import Level
from twin.results import write_bytes
from twin.search.explore import Found

SHARDS = "shards"
"""The folder of the shards in a run folder."""
POINTS = "points.parquet"

_PAIRS = pa.list_(pa.struct([("index", pa.int64()), ("latency_us", pa.float64())]))
_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("points", _PAIRS),
        ("best_by_level", _PAIRS),
        ("simulated", pa.int64()),
        ("pruned", pa.int64()),
        ("open", pa.int64()),
        ("open_bound_us", pa.float64()),
        ("deadlocked", pa.int64()),
    ]
)
_POINTS = ("points", "best_by_level")


class Shards:
    """The shards of a run folder, by the key of their task.

    Raises:
        InputError: the folder cannot be made.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / SHARDS
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise InputError("output", str(self._folder), allowed) from None

    def read(self, key: str) -> Found | None:
        """What an earlier run found, or ``None``.

        Raises:
            InputError: the file is no shard of this task.
        """
        path = self._path(key)
        try:
            data = path.read_bytes()
            # Threads of Arrow's that still run when this process ends would abort it.
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
            (row,) = table.to_pylist()
            if table.schema != _SCHEMA or row.pop("key") != key:
                raise ValueError(key)
            return _found(row)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException):
            allowed = "a shard of a search that was interrupted, or no such file"
            raise InputError("output", str(path), allowed) from None

    def write(self, key: str, found: Found) -> None:
        """Keep what a task found.

        Raises:
            InputError: the disk is full, or the folder cannot be written.
        """
        row = {"key": key, **vars(found)}
        table = pa.table([pa.array([row[field.name]], field.type) for field in _SCHEMA], _SCHEMA)
        write_bytes(self._path(key), _parquet(table))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.parquet"


def write_points(
    folder: Path,
    points: Sequence[tuple[int, float, float]],
    choices: Sequence[Mapping[str, Level]],
) -> None:
    """Write ``points.parquet``: index, latency in us, tokens/s per die and the level of each knob.

    Raises:
        InputError: the disk is full, or the folder cannot be written.
    """
    columns: dict[str, list[Any]] = {
        name: [point[at] for point in points]
        for at, name in enumerate(("index", "latency_us", "tokens_per_s_per_die"))
    }
    for knob in choices[0] if choices else ():
        columns[f"knob.{knob}"] = [choice[knob] for choice in choices]
    write_bytes(folder / POINTS, _parquet(pa.table(columns)))


def _found(row: dict[str, Any]) -> Found:
    for name in _POINTS:
        row[name] = tuple((pair["index"], pair["latency_us"]) for pair in row[name])
    if any(value is None for value in row.values()):
        raise ValueError("a null")
    return Found(**row)


def _parquet(table: pa.Table) -> bytes:
    # Tables of a few rows, one a task: dictionaries and statistics would cost more than they save.
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_statistics=False)
    return bytes(sink.getvalue())
