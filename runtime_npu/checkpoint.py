"""Reading a checkpoint in the Hugging Face safetensors layout, checked before any compute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from hardware_models.errors import InputError
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.parallel.shard import owned
from runtime_npu.weights import (
    LAYERS_ONLY,
    ROUTER_TENSORS,
    SCALE,
    Contents,
    Stored,
    TensorNames,
    is_quantised,
    parameters,
    tensor_names,
)
from twin.model_spec import ModelSpec

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
"""Stored types of tensors that are not quantised, as safetensors names them."""
CONVERT = "python -m runtime_npu.convert makes such a checkpoint"


class Checkpoint:
    """An open checkpoint folder whose tensors have the names, shapes and types they must have.

    Only headers are read at construction; :meth:`read` reads one tensor from its file.
    ``contents`` says what must be there besides the layers.

    Raises:
        InputError: a missing or broken file; a missing, extra, wrong-shaped or wrong-typed
            tensor.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        dtype: str | None,
        contents: Contents = LAYERS_ONLY,
    ) -> None:
        self.spec = spec
        self.contents = contents
        self._folder = folder
        self._files = ExitStack()
        self._open: dict[str, Any] = {}
        try:
            self._file_of = self._locate()
            names = tensor_names(spec, contents)
            self._check_names(names)
            self._check_tensors(names, dtype)
        except BaseException:
            self._files.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @property
    def files(self) -> list[str]:
        """Names of the files that hold the tensors."""
        return sorted(self._open)

    @property
    def names(self) -> list[str]:
        """Names of all tensors, those that nothing reads included."""
        return sorted(self._file_of)

    def read(self, name: str, dtype: torch.dtype, part: tuple[slice, ...] = ()) -> Stored:
        """``part`` of one tensor, for ``dtype``: no more than that is read from the file.

        The router's tensors and scales are for fp32, int8 stays int8.
        """
        # Opened anew: a mapped file's pages count as this process's memory while it is open.
        with safe_open(self._folder / self._file_of[name], framework="pt") as file:
            values = file.get_slice(name)[part or ...]
        if name.endswith((*ROUTER_TENSORS, SCALE)):
            dtype = torch.float32
        elif values.dtype == torch.int8:
            dtype = torch.int8
        return Stored(values, dtype)

    def _locate(self) -> dict[str, str]:
        """File name of each tensor; every file is opened, which checks its length."""
        if (self._folder / INDEX).is_file():
            file_of = _read_index(self._folder / INDEX)
        elif (self._folder / SINGLE).is_file():
            file_of = {}
        else:
            raise InputError("checkpoint", str(self._folder), f"a folder with {INDEX} or {SINGLE}")
        for file in sorted(set(file_of.values())) or [SINGLE]:
            path = self._folder / file
            try:
                self._open[file] = self._files.enter_context(safe_open(path, framework="pt"))
            except FileNotFoundError:
                raise InputError("weight_map", file, "a file of the folder", str(path)) from None
            except (SafetensorError, OSError) as error:
                _refuse_truncated(path)
                raise InputError(
                    "file", str(error), "a whole safetensors file", str(path)
                ) from None
        if not file_of:
            return dict.fromkeys(self._open[SINGLE].keys(), SINGLE)
        for file, opened in self._open.items():
            held = set(opened.keys())
            listed = {name for name, of in file_of.items() if of == file}
            if held != listed:
                name = min(held ^ listed)
                where = "the index but not in its file" if name in listed else "a file only"
                raise InputError(
                    name, f"in {where}", "the same tensors in both", str(self._folder / file)
                )
        return file_of

    def _check_names(self, names: TensorNames) -> None:
        source = str(self._folder)
        missing = sorted(set(names.required) - set(self._file_of))
        if missing:
            hint = f"; {CONVERT}" if missing[0].endswith(SCALE) else ""
            raise InputError(
                missing[0],
                f"missing ({len(missing)} in all)",
                f"every tensor of the model{hint}",
                source,
            )
        extra = [
            name
            for name in sorted(set(self._file_of) - set(names.required))
            if not names.ignored(name)
        ]
        if extra:
            raise InputError(
                extra[0],
                f"a tensor that the model has not ({len(extra)} in all)",
                "only the model's tensors"
                + (" (scales belong to w8a8)" if extra[0].endswith(SCALE) else ""),
                source,
            )

    def _check_tensors(self, names: TensorNames, declared: str | None) -> None:
        """Shapes, and one type throughout: the config's, or else that of the embedding.

        What is quantised is int8 and its scales fp32; the router may be fp32.
        """
        wanted = _stored_type(declared) or self._type("model.embed_tokens.weight")
        for name, shape in names.required.items():
            source = str(self._folder / self._file_of[name])
            found = tuple(self._open[self._file_of[name]].get_slice(name).get_shape())
            if found != shape:
                raise InputError(f"{name} shape", list(found), str(list(shape)), source)
            stored, allowed = self._type(name), {wanted} & set(TYPES)
            if name.endswith(SCALE):
                allowed = {"F32"}
            elif self.contents.int8 and is_quantised(name):
                allowed = {"I8"}
            elif name.endswith(ROUTER_TENSORS):
                allowed |= {"F32"}
            if stored not in allowed:
                types = " or ".join(sorted(allowed or TYPES))
                raise InputError(f"{name} dtype", stored, types, source)

    def _type(self, name: str) -> str:
        return str(self._open[self._file_of[name]].get_slice(name).get_dtype())


def _refuse_truncated(path: Path) -> None:
    """Name the first tensor that a file ends in or before, where its header can be read.

    Raises:
        InputError: there is one.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < path.stat().st_size else {}
        held = path.stat().st_size - 8 - length
        spans = {name: entry["data_offsets"] for name, entry in header.items() if name[0] != "_"}
        late = {name: (int(b), int(e)) for name, (b, e) in spans.items() if int(e) > held}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return  # no header: there is no tensor to name
    if late:
        name, (begin, end) = min(late.items(), key=lambda item: item[1])
        raise InputError(
            name, f"{max(0, held - begin)} bytes", f"all {end - begin} (truncated file)", str(path)
        )


def _stored_type(declared: str | None) -> str | None:
    return {"float32": "F32", "bfloat16": "BF16"}[declared] if declared else None


def _read_index(path: Path) -> dict[str, str]:
    """``weight_map`` of an index file: names to files of the same folder."""
    source = str(path)
    try:
        data = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise InputError("file", str(error), "valid JSON", source) from None
    found = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(found, dict) or not found:
        raise InputError("weight_map", found, "a mapping of tensor names to files", source)
    for name, file in found.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(f"weight_map.{name}", file, "a file name of the same folder", source)
    return found


def declared_dtype(config: Mapping[str, object], source: str) -> str | None:
    """``dtype`` (or ``torch_dtype``) of a config.json; ``None`` where it says nothing.

    Raises:
        InputError: another type than float32 or bfloat16.
    """
    for field in ("dtype", "torch_dtype"):
        value = config.get(field)
        if value is not None:
            if value not in ("float32", "bfloat16"):
                raise InputError(field, value, "float32 or bfloat16", source)
            return str(value)
    return None


def load_weights(model: LongcatFlash | FfnDie, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """Fill the model's parameters from its rank's part of a checkpoint, in ``dtype``."""
    spec, shard = checkpoint.spec, model.shard

    def read(name: str) -> Stored:
        return checkpoint.read(name, dtype, owned(shard, spec, name))

    state = parameters(spec, read, checkpoint.contents, shard)
    model.load_state_dict(state, strict=True, assign=True)
    model.requires_grad_(requires_grad=False)
