"""Prompts as token ids or as text, checked against model and lengths."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware_models.errors import InputError, MachineError
from runtime_npu.options import RunOptions
from runtime_npu.source import WeightSource
from twin.model_spec import ModelSpec
from twin.workload import Workload

SAMPLE_LENGTHS = (5, 3)
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids per prompt, and the tokenizer that made them (``None``: given as ids)."""

    ids: tuple[tuple[int, ...], ...]
    tokenizer: Any = None

    def decode(self, token_ids: Sequence[Sequence[int]]) -> tuple[str, ...] | None:
        """New tokens as text, where the prompts were text."""
        if self.tokenizer is None:
            return None
        return tuple(self.tokenizer.decode(list(tokens)) for tokens in token_ids)


def read_prompts(
    options: RunOptions, source: WeightSource, workload: Workload | None = None
) -> Prompts:
    """The prompts of a run: ``prompt_ids``, ``prompts``, or samples.

    Samples are those of :func:`workload_prompts` where a ``workload`` is given, else two short
    ones.

    Raises:
        InputError: both kinds given, an empty one, an id outside the vocabulary, or a prompt
            that grows beyond the model's positions; no tokenizer in the checkpoint.
        MachineError: text, and no `tokenizers` package.
    """
    if options.prompts is not None:
        if options.prompt_ids is not None:
            raise InputError("prompt_ids", options.prompt_ids, "null with prompts=")
        prompts = _encode(options.prompts, source.folder)
        field = "prompts"
    else:
        ids = options.prompt_ids
        if ids is None and workload is not None:
            ids = workload_prompts(source.spec, workload, options.max_new_tokens, options.seed)
        prompts = Prompts(sample_prompts(source.spec) if ids is None else ids)
        field = "prompt_ids"
    _check(prompts.ids, field, source.spec, options.max_new_tokens)
    return prompts


def sample_prompts(spec: ModelSpec) -> tuple[tuple[int, ...], ...]:
    """Two prompts of different lengths: ids counting from 1, within the vocabulary."""
    return tuple(
        tuple((start + 1 + position) % spec.vocab_size for position in range(length))
        for start, length in zip((0, SAMPLE_LENGTHS[0]), SAMPLE_LENGTHS, strict=True)
    )


def workload_prompts(
    spec: ModelSpec, workload: Workload, max_new_tokens: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    """``workload``'s batch of random prompts: half-way through a run they are its KV long."""
    length = max(1, workload.kv_tokens - max_new_tokens // 2)
    draw = random.Random(seed)
    return tuple(
        tuple(draw.choices(range(spec.vocab_size), k=length)) for _ in range(workload.global_batch)
    )


def _encode(texts: Sequence[str], folder: Path) -> Prompts:
    path = folder / TOKENIZER
    if not path.is_file():
        raise InputError("prompts", list(texts), f"prompt_ids, as there is no {path}")
    if importlib.util.find_spec("tokenizers") is None:
        raise MachineError(
            "prompts= needs the tokenizers package: pip install tokenizers (or give prompt_ids=)"
        )
    from tokenizers import Tokenizer  # noqa: PLC0415 (optional)

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise InputError("file", str(error), "a tokenizer", str(path)) from None
    return Prompts(tuple(tuple(tokenizer.encode(text).ids) for text in texts), tokenizer)


def _check(
    prompts: Sequence[Sequence[int]], field: str, spec: ModelSpec, max_new_tokens: int
) -> None:
    if not prompts:
        raise InputError(field, list(prompts), "at least one prompt")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise InputError(f"{field}[{index}]", list(prompt), "at least one token")
        for token in prompt:
            if not 0 <= token < spec.vocab_size:
                raise InputError(
                    f"{field}[{index}]", token, f"token ids from 0 to {spec.vocab_size - 1}"
                )
        if len(prompt) + max_new_tokens > spec.max_position_embeddings:
            raise InputError(
                f"{field}[{index}]",
                f"{len(prompt)} tokens",
                f"with max_new_tokens {max_new_tokens} at most the model's "
                f"{spec.max_position_embeddings} positions",
            )
