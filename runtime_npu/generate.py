"""Greedy generation: one prefill of all prompts, then one token per sequence and step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hardware_models.errors import InputError
from runtime_npu.batch import pack
from runtime_npu.kv_cache import BLOCK_TOKENS, KvCache
from runtime_npu.model.longcat import LongcatFlash, StepOutput
from runtime_npu.record import OpRecord, Recorder
from runtime_npu.rope import rope_table
from twin.workload import Phase

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """``token_ids``: new tokens per prompt, the end token included.  ``prefill_s`` and
    ``step_s`` are wall times; ``steps`` are the records of the decode steps.
    """  # noqa: D205

    token_ids: tuple[Tokens, ...]
    prefill_s: float
    step_s: tuple[float, ...]
    prefill_ops: tuple[OpRecord, ...]
    steps: tuple[tuple[OpRecord, ...], ...]


class Decoder:
    """Sequences in their cache: prefill once, then step by step.

    ``lengths`` are the most tokens that each sequence reaches, ``blocks`` the size of the
    pool that they share (:func:`runtime_npu.kv_cache.pool_blocks`).
    """

    def __init__(
        self,
        model: LongcatFlash,
        lengths: Sequence[int],
        blocks: int,
        *,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._model = model
        dtype = model.embed.dtype
        self._rope = rope_table(model.spec, max(lengths), dtype)
        self._cache = KvCache(
            model.spec,
            sequences=len(lengths),
            blocks=blocks,
            dtype=dtype,
            block_tokens=block_tokens,
        )
        self._lengths = [0] * len(lengths)

    @property
    def recorder(self) -> Recorder:
        """Where the model's ops are recorded."""
        return self._model.backend.recorder

    def prefill(self, prompts: Sequence[Sequence[int]]) -> StepOutput:
        """All prompts in one pass, packed without padding."""
        return self._run("prefill", prompts)

    def step(self, tokens: Sequence[int]) -> StepOutput:
        """One token more for every sequence."""
        return self._run("decode", [[token] for token in tokens])

    @torch.inference_mode()
    def _run(self, phase: Phase, new_tokens: Sequence[Sequence[int]]) -> StepOutput:
        batch = pack(phase, new_tokens, self._lengths, self._cache, self._rope)
        output = self._model(batch, self._cache)
        self._lengths = list(batch.kv_lengths)
        assert isinstance(output, StepOutput)
        return output


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    end_tokens: Sequence[int] = (),
) -> Generation:
    """Greedy tokens for every prompt, until each has ``max_new_tokens`` or an end token.

    A sequence that has ended stays in the batch (its shape is fixed); what it gives is
    dropped.

    Raises:
        InputError: the logits are not finite.
    """
    recorder = decoder.recorder
    recorder.take()
    new: list[list[int]] = [[] for _ in prompts]
    ended = [False] * len(prompts)

    def keep(output: StepOutput) -> list[int]:
        if not torch.isfinite(output.logits).all():
            raise InputError("checkpoint", "logits that are not finite", "finite weights")
        tokens: list[int] = output.tokens.tolist()
        for index, token in enumerate(tokens):
            if not ended[index]:
                new[index].append(token)
                ended[index] = token in end_tokens
        return tokens

    start = time.perf_counter()
    tokens = keep(decoder.prefill(prompts))
    prefill_s = time.perf_counter() - start
    prefill_ops = recorder.take()
    step_s: list[float] = []
    steps: list[tuple[OpRecord, ...]] = []
    for _ in range(max_new_tokens - 1):
        if all(ended):
            break
        start = time.perf_counter()
        tokens = keep(decoder.step(tokens))
        step_s.append(time.perf_counter() - start)
        steps.append(recorder.take())
    return Generation(
        token_ids=tuple(tuple(tokens) for tokens in new),
        prefill_s=prefill_s,
        step_s=tuple(step_s),
        prefill_ops=prefill_ops,
        steps=tuple(steps),
    )
