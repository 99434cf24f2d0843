"""Writing a safetensors file piece by piece, so that no tensor need be whole in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch

from hardware_models.errors import InputError

ITEM_BYTES = {"F32": 4, "BF16": 2, "I8": 1}
"""Stored types, as safetensors names them, in the order in which they lie in a file."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Type (as safetensors names it) and shape of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of the whole tensor."""
        return torch.Size(self.shape).numel() * ITEM_BYTES[self.dtype]


class TensorWriter:
    """A file that appears under its name once all of it is written.

    The layout is the public safetensors format: 8 bytes with the header's length, a JSON
    header, the data.  Wider types lie first, so that all are aligned.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._begin: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        order = list(ITEM_BYTES)
        for name, stored in sorted(tensors.items(), key=lambda item: order.index(item[1].dtype)):
            begin, end = end, end + stored.bytes
            self._begin[name] = begin
            header[name] = {
                "dtype": stored.dtype,
                "shape": list(stored.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._data = 8 + len(text)
        self.bytes = self._data + end
        self._file: BinaryIO
        self._header = len(text).to_bytes(8, "little") + text

    def __enter__(self) -> TensorWriter:
        self._file = self._partial.open("wb")
        self._file.write(self._header)
        self._file.truncate(self.bytes)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._partial, self._path)
        else:
            self._partial.unlink()

    def write(self, name: str, first: int, piece: torch.Tensor) -> None:
        """Put ``piece`` into the tensor ``name``, from its element ``first`` on.

        Raises:
            InputError: the disk is full, or does not take it.
        """
        self._file.seek(self._data + self._begin[name] + first * piece.itemsize)
        try:
            self._file.write(piece.contiguous().flatten().view(torch.uint8).numpy().data)
            self._file.flush()
        except OSError as error:
            raise InputError(
                "into", str(self._path), f"a file that can be written ({error.strerror})"
            ) from None
