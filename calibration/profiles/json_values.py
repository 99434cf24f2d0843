"""JSON of a profiler: files and numbers that may be anything."""

from __future__ import annotations

import json
import math
from pathlib import Path

from hardware_models.errors import InputError

MOST_BYTES = 1 << 30


def load_json(path: Path) -> object:
    """A JSON file of at most 1 GiB.

    Raises:
        InputError: it cannot be read, is empty, too large, cut off or no JSON; names the line.
    """
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise InputError("profile", f"{size} bytes", f"at most {MOST_BYTES} bytes", str(path))
        text = path.read_bytes().decode("utf-8-sig", "backslashreplace")
    except OSError as error:
        raise InputError("profile", str(path), f"a readable file ({error.strerror})") from None
    try:
        return json.loads(text, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}"
        raise InputError("profile", f"{error.msg} in column {error.colno}", "JSON", where) from None
    except (RecursionError, ValueError) as error:
        raise InputError("profile", str(error)[:80], "plain JSON", f"{path}:1") from None


def no_constant(_: str) -> None:
    """NaN and Infinity, which JSON does not have but Python writes, are no value."""


def number(value: object) -> float | None:
    """A finite number from 0 of a JSON file, written as a number or as text; None else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and found >= 0 else None
