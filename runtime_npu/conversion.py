"""Converting a checkpoint to W8A8: file by file, in bounded memory, resumable.

Every FFN tensor (experts and the MTP layer's included) becomes int8 under its name, with
fp32 scales per output channel [rows, 1] under its name + ``_scale``; all others are copied.
Files keep their names.  ``conversion.json`` in the new folder says which files are done, so
that a second run goes on where the first ended.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from hardware_models.errors import InputError
from runtime_npu.checkpoint import CONFIG, INDEX, Checkpoint, declared_dtype
from runtime_npu.quantise import quantise_rows
from runtime_npu.tensor_writer import Stored, TensorWriter
from runtime_npu.weights import MTP, SCALE, Contents, is_quantised
from twin.models import load_model
from twin.results import write_json

STATE = "conversion.json"
PIECE_BYTES = 32 * 2**20
"""Weights are read and written in pieces of about this size."""
_SAMPLE_BYTES = 64 * 2**10

Progress = Callable[[int, int], None]
"""Called with the bytes of the source done so far, and all of them."""


@dataclass(frozen=True, slots=True)
class TensorError:
    """A quantised tensor against its original, over all its elements.

    ``square_error`` and ``square_sum`` are sums of squares: of the differences, and of the
    original.
    """

    name: str
    square_error: float
    square_sum: float

    @property
    def relative(self) -> float:
        """Root mean square of the differences over that of the original."""
        return math.sqrt(self.square_error / self.square_sum) if self.square_sum else 0.0


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was converted: ``kept`` files were done by an earlier run."""

    files: int
    kept: int
    source_bytes: int
    bytes: int
    errors: tuple[TensorError, ...]


def convert(source: Path, into: Path, progress: Progress) -> Conversion:
    """Convert the checkpoint ``source`` into the folder ``into``.

    Raises:
        InputError: a broken checkpoint (nothing is written), weights that are not finite, a
            folder with other files, or one that cannot be written.
    """
    paths = _checked(source)
    _prepare(source, into)
    state = _State(into)
    total = sum(path.stat().st_size for path in paths)
    kept, size, done, errors = 0, 0, 0, []
    for path in paths:
        progress(done, total)
        digest = _digest(path)
        found = state.errors(path.name, digest)
        if found is None:
            found = _convert_file(path, into / path.name, partial(_shifted, progress, done, total))
            state.add(path.name, digest, found)
        else:
            kept += 1
        done += path.stat().st_size
        errors += found
        size += (into / path.name).stat().st_size
    progress(done, total)
    _copy_others(source, into, [path.name for path in paths])
    return Conversion(
        files=len(paths),
        kept=kept,
        source_bytes=total,
        bytes=size,
        errors=tuple(errors),
    )


def _shifted(progress: Progress, start: int, total: int, moved: int) -> None:
    progress(start + moved, total)


def _checked(source: Path) -> list[Path]:
    """The files of a checkpoint whose tensors are all there and right."""
    config = source / CONFIG
    if not config.is_file():
        raise InputError("checkpoint", str(source), f"a folder with {CONFIG}")
    spec = load_model(str(config))
    dtype = declared_dtype(json.loads(config.read_text("utf-8")), str(config))
    with Checkpoint(source, spec, dtype) as checkpoint:
        paths = [source / file for file in checkpoint.files]
        mtp = any(name.startswith(MTP) for name in checkpoint.names)
    with Checkpoint(source, spec, dtype, Contents(mtp=mtp)):
        return paths


def _prepare(source: Path, into: Path) -> None:
    if into.resolve() == source.resolve():
        raise InputError("into", str(into), "another folder than checkpoint")
    if into.exists() and not into.is_dir():
        raise InputError("into", str(into), "a folder")
    if into.is_dir() and any(into.iterdir()) and not (into / STATE).is_file():
        raise InputError("into", str(into), "a new or an empty folder, or one to resume in")
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("into", str(into), f"a folder ({error.strerror})") from None


class _State:
    """Which files of the new folder are done, and from what they were made."""

    def __init__(self, into: Path) -> None:
        self._path = into / STATE
        self._files: dict[str, Any] = {}
        if self._path.is_file():
            try:
                self._files = dict(json.loads(self._path.read_text("utf-8"))["files"])
            except (ValueError, KeyError, TypeError):
                raise InputError(
                    "file", "not a conversion's state", "valid JSON", str(self._path)
                ) from None
        else:
            write_json(self._path, {"files": {}})

    def errors(self, name: str, digest: str) -> list[TensorError] | None:
        """The errors of a file that is done, from the same source, and still there."""
        entry = self._files.get(name)
        path = self._path.parent / name
        if not entry or entry["source"] != digest or not path.is_file():
            return None
        if path.stat().st_size != entry["bytes"]:
            return None
        return [TensorError(**error) for error in entry["errors"]]

    def add(self, name: str, digest: str, errors: list[TensorError]) -> None:
        """Note a file as done."""
        self._files[name] = {
            "source": digest,
            "bytes": (self._path.parent / name).stat().st_size,
            "errors": [asdict(error) for error in errors],
        }
        write_json(self._path, {"files": self._files})


def _digest(path: Path) -> str:
    """Of a file's size and of samples: its start (with most of the header), middle and end."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _stored(path: Path) -> dict[str, Stored]:
    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {n: Stored(s.get_dtype(), tuple(s.get_shape())) for n, s in slices.items()}


def _convert_file(path: Path, target: Path, progress: Callable[[int], None]) -> list[TensorError]:
    found = _stored(path)
    wanted: dict[str, Stored] = {}
    for name, stored in found.items():
        wanted[name] = Stored("I8", stored.shape) if is_quantised(name) else stored
        if is_quantised(name):
            wanted[name + SCALE] = Stored("F32", (stored.shape[0], 1))
    errors, moved = [], 0
    with TensorWriter(target, wanted) as writer:
        for name, stored in found.items():
            square_error = square_sum = 0.0
            for first, piece in _pieces(path, name, stored):
                width = piece[0].numel()
                if is_quantised(name):
                    if not torch.isfinite(piece).all():
                        raise InputError(name, "not finite", "finite weights", str(path))
                    values, scale = quantise_rows(piece)
                    writer.write(name, first * width, values)
                    writer.write(name + SCALE, first, scale)
                    exact = piece.double()
                    restored = values.double() * scale.double().unsqueeze(-1)
                    square_error += float((restored - exact).square().sum())
                    square_sum += float(exact.square().sum())
                else:
                    writer.write(name, first * width, piece)
                moved += piece.nbytes
                progress(moved)
            if is_quantised(name):
                errors.append(TensorError(name, square_error, square_sum))
    return errors


def _pieces(path: Path, name: str, stored: Stored) -> Iterator[tuple[int, torch.Tensor]]:
    """Rows of a tensor, some at a time, each piece with the index of its first row."""
    count = stored.shape[0]
    rows = max(1, PIECE_BYTES * count // max(1, stored.bytes))
    for first in range(0, count, rows):
        # Opened for each piece: a mapped file's pages count as memory while it is open.
        with safe_open(path, framework="pt") as file:
            piece = file.get_slice(name)[first : first + rows].clone()
        yield first, piece


def _copy_others(source: Path, into: Path, converted: Sequence[str]) -> None:
    """Configuration, tokenizer and whatever else lies in the folder; the index with its scales."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in converted and path.name != INDEX:
            shutil.copyfile(path, into / path.name)
    if (source / INDEX).is_file():
        file_of = json.loads((source / INDEX).read_text("utf-8"))["weight_map"]
        scales = {name + SCALE: file for name, file in file_of.items() if is_quantised(name)}
        total = sum(stored.bytes for name in converted for stored in _stored(into / name).values())
        whole = {**file_of, **scales}
        write_json(into / INDEX, {"metadata": {"total_size": total}, "weight_map": whole})
