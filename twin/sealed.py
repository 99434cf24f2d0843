"""Sealed predictions: what was predicted, from what and when, in one file that cannot be bent.

A seal is made before a measurement and held against it afterwards.  Each part has a SHA-256,
and the file one over all of them: an altered file is refused, with the names of the parts that
were altered.  Whoever makes up a whole new file can hash it as well; the hash that was printed
when the file was sealed tells that apart.

The file is the one place of a run folder that carries a date: ``result.json`` stays the same
bytes for the same inputs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware, dump_hardware, parse_hardware
from hardware_models.yaml_io import read_text
from twin.entry import entry_of, latency_key
from twin.evaluate import Evaluation
from twin.results import write_json
from twin.schedule import Schedule
from twin.schedule_io import dump_schedule, parse_schedule
from twin.uncertainty import COVERAGE

SEALED = "sealed.json"
FORMAT = 1
SHORTEST_HASH = 8
"""Hex digits of a hash that tell sealed files apart."""

_PARTS = ("format", "sealed_at", "made_by", "schedule", "prediction", "interval", "parameters")
_HEX = re.compile(rf"[0-9a-fA-F]{{{SHORTEST_HASH},64}}")
_HASHES, _HASH = "hashes", "hash"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed prediction as read back; latencies in us, ``hash`` over the whole file.

    ``latency_us``, ``low_us`` and ``high_us`` are a TPOT in decode, a TTFT in prefill.
    """

    sealed_at: str
    schedule: Schedule
    hardware: Hardware
    step_us: float
    latency_us: float
    low_us: float
    high_us: float
    hash: str


def check_seal(folder: Path, draws: int, names: tuple[str, ...] = (SEALED,)) -> None:
    """Refuse, before anything is simulated, what could not be sealed.

    Raises:
        InputError: there would be no interval, or the folder holds a sealed file already.
    """
    if not draws:
        raise InputError("draws", draws, "a number from 1 with seal=true: a seal has an interval")
    for name in names:
        if (folder / name).exists():
            allowed = f"a folder without {name}: a sealed file is never overwritten"
            raise InputError("output", str(folder), allowed)


def write_sealed(
    path: Path,
    evaluation: Evaluation,
    hardware: Hardware,
    made_by: Mapping[str, object],
    sealed_at: datetime | None = None,
) -> str:
    """Seal an evaluation that has an interval; gives the file's hash.

    ``made_by`` says which command made it, from what; ``sealed_at`` (default: now) is kept in
    UTC, to the second.

    Raises:
        InputError: the file cannot be written.
    """
    interval = evaluation.interval_us
    assert interval is not None, "check_seal asks for draws"
    at = (sealed_at or datetime.now(UTC)).astimezone(UTC)
    entry = entry_of("sealed", evaluation, path.name)
    parts: dict[str, object] = {
        "format": FORMAT,
        "sealed_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "made_by": {**made_by, "version": version("longcat-twin")},
        "schedule": dump_schedule(evaluation.schedule),
        "prediction": {k: v for k, v in entry.items() if k not in ("name", "schedule", "interval")},
        "interval": {
            "of": latency_key(evaluation.schedule),
            "low_ms": interval[0] / 1e3,
            "high_ms": interval[1] / 1e3,
            "coverage": COVERAGE,
        },
        "parameters": dump_hardware(hardware),
    }
    hashes = {name: _hash(parts[name]) for name in _PARTS}
    sealed = {**parts, _HASHES: hashes, _HASH: _hash(hashes)}
    write_json(path, sealed)
    return _hash(hashes)


def read_sealed(path: Path, known_hash: str | None = None) -> Sealed:
    """A sealed file, if it is as it was sealed; ``known_hash`` is what sealing it printed.

    Of that hash its first digits are enough, from ``SHORTEST_HASH`` on.

    Raises:
        InputError: it is no sealed file, or was altered: names the altered parts; or
            ``known_hash`` is no hash or of another file.
    """
    if known_hash is not None and not _HEX.fullmatch(known_hash):
        allowed = f"the hash that sealing printed, or its first {SHORTEST_HASH} hex digits or more"
        raise InputError("sealed_hash", known_hash, allowed)
    text = read_text(path, "sealed")
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError("sealed", str(error)[:80], "JSON", str(path)) from None
    keys = {*_PARTS, _HASHES, _HASH}
    if not isinstance(data, dict) or not isinstance(data.get(_HASHES), dict):
        raise InputError("sealed", str(path), f"a file {SEALED} of a run with seal=true")
    odd = sorted(keys ^ set(data))
    altered = odd or [name for name in _PARTS if _hash(data[name]) != data[_HASHES].get(name)]
    if not altered and _hash(data[_HASHES]) != data[_HASH]:
        altered = [_HASHES]
    if altered:
        allowed = "a file as it was sealed; these parts were altered since"
        raise InputError("sealed", altered, allowed, str(path))
    if known_hash is not None and not data[_HASH].startswith(known_hash.lower()):
        allowed = f"the file whose hash was {known_hash}: this one was sealed anew"
        raise InputError("sealed_hash", data[_HASH], allowed, str(path))
    return _sealed(data, str(path))


def _sealed(data: Mapping[str, Any], source: str) -> Sealed:
    if data["format"] != FORMAT:
        raise InputError("format", data["format"], f"{FORMAT}", source)
    try:
        prediction, interval = data["prediction"], data["interval"]
        return Sealed(
            sealed_at=str(data["sealed_at"]),
            schedule=parse_schedule(data["schedule"], source),
            hardware=parse_hardware(data["parameters"], source),
            step_us=float(prediction["step_ms"]) * 1e3,
            latency_us=float(prediction[interval["of"]]) * 1e3,
            low_us=float(interval["low_ms"]) * 1e3,
            high_us=float(interval["high_ms"]) * 1e3,
            hash=data[_HASH],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Hashed well, but not by write_sealed.
        raise InputError("sealed", str(error), "the fields of a sealed file", source) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _hash(part: object) -> str:
    """SHA-256 of a part as JSON with sorted keys: layout and order of a file do not count."""
    text = json.dumps(part, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
