"""Files that say how a cluster is loaded: KV lengths, token counts, placements (CSV or JSON)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hardware_models.errors import InputError

Longs = npt.NDArray[np.int64]

_LONG_HEADER = ["layer", "expert", "tokens"]


def read_kv_lengths(path: str, requests: int) -> Longs:
    """One length a line, or a JSON list; the first ``requests`` of them.

    Raises:
        InputError: the file cannot be read, is too short, or has something that is no length.
    """
    numbers = _numbers(path, "kv.file").reshape(-1)
    if len(numbers) < requests:
        raise InputError("kv.file", len(numbers), f"{requests} lengths, one a request", path)
    if (numbers < 1).any():
        raise InputError("kv.file", int(numbers.min()), "lengths of at least 1", path)
    return numbers[:requests]


def read_token_counts(path: str, layers: int, experts: int) -> Longs:
    """Token counts, [layer, expert].

    JSON: a list of layers, each a list of counts.  CSV: the same without a header, or long
    lines under the header ``layer,expert,tokens``; what is not named there has no tokens.

    Raises:
        InputError: the file cannot be read, has other sizes, or a layer without tokens.
    """
    counts = _long(path, layers, experts)
    if counts is None:
        counts = _numbers(path, "load.file")
    if counts.shape != (layers, experts):
        shape = " x ".join(str(size) for size in counts.shape)
        raise InputError("load.file", shape, f"{layers} layers x {experts} experts", path)
    if (counts < 0).any() or (counts.sum(axis=1) == 0).any():
        raise InputError(
            "load.file", int(counts.min()), "counts from 0, and tokens in each layer", path
        )
    return counts


def read_placement(path: str, slots: int, experts: int) -> Longs:
    """The logical expert of each physical slot, rank after rank.

    Raises:
        InputError: the file cannot be read, has another number of slots, or leaves an
            expert without a slot.
    """
    numbers = _numbers(path, "placement.file").reshape(-1)
    if len(numbers) != slots:
        raise InputError("placement.file", len(numbers), f"{slots} slots", path)
    if (numbers < 0).any() or (numbers >= experts).any():
        raise InputError("placement.file", int(numbers.max()), f"experts 0 to {experts - 1}", path)
    missing = np.setdiff1d(np.arange(experts), numbers)
    if len(missing):
        raise InputError("placement.file", missing[:5].tolist(), "a slot for each expert", path)
    return numbers


def _text(path: str, field: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(field, path, f"a text file that can be read ({error})") from None


def _numbers(path: str, field: str) -> Longs:
    """The whole numbers of a JSON file (``.json``) or of the lines of a CSV file."""
    text = _text(path, field)
    try:
        if path.lower().endswith(".json"):
            rows = json.loads(text)
        else:
            rows = [[int(cell) for cell in row] for row in csv.reader(text.splitlines()) if row]
        numbers = np.array(rows)
    except (ValueError, TypeError) as error:
        raise InputError(field, str(error), "lines or lists of whole numbers", path) from None
    if numbers.size == 0 or numbers.dtype.kind not in "iu":
        raise InputError(field, str(rows)[:40], "lines or lists of whole numbers", path)
    return numbers.astype(np.int64)


def _long(path: str, layers: int, experts: int) -> Longs | None:
    """Counts from long lines; ``None`` where the file has no such header."""
    if path.lower().endswith(".json"):
        return None
    lines = list(csv.reader(_text(path, "load.file").splitlines()))
    if not lines or [cell.strip().lower() for cell in lines[0]] != _LONG_HEADER:
        return None
    counts = np.zeros((layers, experts), np.int64)
    for number, line in enumerate(lines[1:], 2):
        try:
            layer, expert, tokens = (int(cell) for cell in line)
        except ValueError:
            raise InputError(
                f"load.file line {number}", ",".join(line), "three whole numbers", path
            ) from None
        if not (0 <= layer < layers and 0 <= expert < experts):
            raise InputError(
                f"load.file line {number}",
                ",".join(line),
                f"layers 0 to {layers - 1} and experts 0 to {experts - 1}",
                path,
            )
        counts[layer, expert] += tokens
    return counts
