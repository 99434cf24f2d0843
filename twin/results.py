"""Result files of the commands: stable keys, the same bytes for the same inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from hardware_models.errors import InputError

SCHEMA_VERSION = 1
_PACKAGES = ("longcat-twin", "numpy", "scipy", "simpy")


def write_result(
    folder: Path,
    command: str,
    seed: int,
    payload: Mapping[str, object],
    packages: Sequence[str] = (),
) -> Path:
    """Write ``result.json``: schema version, command, seed, package versions, then ``payload``.

    ``packages`` are those that this command computes with beyond the base dependencies.

    Nothing that differs between two runs of the same inputs belongs in ``payload``: no times
    of day, no durations, no paths outside the run folder.

    Raises:
        InputError: the run folder cannot be written.
    """
    head = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "seed": seed,
        "versions": {name: version(name) for name in (*_PACKAGES, *packages)},
    }
    return write_json(folder / "result.json", {**head, **payload})


def write_timing(folder: Path, wall_s: float, rates: Mapping[str, float]) -> Path:
    """Write ``timing.json``: the wall time of the run and rates per second by name.

    Raises:
        InputError: the run folder cannot be written.
    """
    return write_json(folder / "timing.json", {"wall_s": wall_s, **rates})


def write_json(
    path: Path, data: Mapping[str, object] | Sequence[object], *, indent: int | None = 1
) -> Path:
    """Write JSON in the keys' order; floats keep all their digits.

    Raises:
        InputError: the file cannot be written.
    """
    text = json.dumps(data, indent=indent, allow_nan=False, ensure_ascii=False)
    return write_text(path, text + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write a file of UTF-8 text as :func:`write_bytes` does.

    Raises:
        InputError: the file cannot be written.
    """
    return write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file in one piece: a reader, or a killed run, never sees half of it.

    Raises:
        InputError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise InputError(
            "output", str(path), f"a file that can be written ({error.strerror})"
        ) from None
    return path
