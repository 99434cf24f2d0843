"""Where the weights come from: a checkpoint folder, or a random one made for the run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardware_models.errors import InputError
from runtime_npu.checkpoint import CONFIG, declared_dtype
from runtime_npu.options import RunOptions
from runtime_npu.random_checkpoint import Dtype, make_checkpoint
from runtime_npu.weights import Contents
from twin.model_spec import ModelSpec
from twin.models import load_model, shipped_models
from twin.schedule import Schedule

STORED: Mapping[str, Dtype] = {"fp32": "float32", "bf16": "bfloat16", "w8a8": "bfloat16"}


@dataclass(frozen=True, slots=True)
class WeightSource:
    """A checkpoint folder, the model that its config.json describes, and what else it says.

    ``dtype`` is the type of its tensors, ``end_tokens`` the ids that end a sequence.
    """

    folder: Path
    spec: ModelSpec
    dtype: str | None
    end_tokens: tuple[int, ...]


def weight_source(options: RunOptions, schedule: Schedule, scratch: Path) -> WeightSource:
    """The checkpoint of a run.

    ``checkpoint`` names it.  Without it, a schedule whose model is a config.json means the
    checkpoint around that file; else random weights are made of ``model`` (default: the
    schedule's) in the folder ``make_checkpoint``, or in ``scratch``.

    Raises:
        InputError: options that contradict each other, no such folder, a bad config.json.
    """
    if options.checkpoint is not None:
        if options.make_checkpoint is not None:
            raise InputError("make_checkpoint", options.make_checkpoint, "null with checkpoint=")
        source = _read(Path(options.checkpoint), "checkpoint")
        if options.model is not None:
            _check_same(load_model(options.model), source.spec)
        return source
    name = options.model or schedule.model
    if options.model is None and options.make_checkpoint is None and name not in shipped_models():
        path = Path(name)
        return _read(path if path.is_dir() else path.parent, "model")
    spec = load_model(name)
    dtype = STORED[schedule.deployment.quantisation]
    contents = contents_of(schedule)
    if options.make_checkpoint is None:
        make_checkpoint(scratch, spec, options.seed, dtype, contents, overwrite=True)
        return _read(scratch, "model")
    make_checkpoint(Path(options.make_checkpoint), spec, options.seed, dtype, contents)
    return _read(Path(options.make_checkpoint), "make_checkpoint")


def contents_of(schedule: Schedule) -> Contents:
    """What a checkpoint must hold for a schedule besides the layers."""
    return Contents(
        mtp=schedule.workload.next_n > 0, int8=schedule.deployment.quantisation == "w8a8"
    )


def _read(folder: Path, field: str) -> WeightSource:
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(field, str(folder), f"a folder with {CONFIG}")
    spec = load_model(str(path))
    config = json.loads(path.read_text("utf-8"))
    return WeightSource(
        folder, spec, declared_dtype(config, str(path)), _end_tokens(config, str(path))
    )


def _end_tokens(config: Mapping[str, object], source: str) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or token < 0:
            raise InputError("eos_token_id", value, "a token id, a list of them, or null", source)
    return tuple(ids)


def _check_same(asked: ModelSpec, found: ModelSpec) -> None:
    for field in dataclasses.fields(ModelSpec):
        theirs, ours = getattr(asked, field.name), getattr(found, field.name)
        if field.name != "name" and theirs != ours:
            raise InputError(
                "model",
                asked.name,
                f"the checkpoint's model, or null (its {field.name} is {ours}, not {theirs})",
            )
