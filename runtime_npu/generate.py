"""Greedy generation: one prefill of all prompts, then one token per sequence and step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hardware_models.errors import InputError
from runtime_npu.batch import Packer
from runtime_npu.kv_cache import BLOCK_TOKENS, KvCache, pool_blocks
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash, StepOutput
from runtime_npu.parallel.groups import place_of
from runtime_npu.parallel.layout import LastRows, Layout, last_rows
from runtime_npu.parallel.world import World, alone
from runtime_npu.record import OpRecord, Recorder
from runtime_npu.rope import rope_table
from twin.deployment import Deployment
from twin.graph.shapes import local_kv_tokens
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
    """One rank's side of a batch: prefill once, then step by step.

    All ranks know all sequences, and learn all new tokens behind every pass; a rank's cache
    holds those of its own attention group.  ``lengths`` are the most tokens that each sequence
    reaches, ``blocks`` the size of this rank's pool (:func:`rank_blocks`).
    """

    def __init__(
        self,
        model: LongcatFlash | FfnDie,
        lengths: Sequence[int],
        blocks: int,
        world: World | None = None,
        *,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._model = model
        self._world = world or alone()
        self.layout = Layout(self._world.deployment, len(lengths))
        self._lengths = [0] * len(lengths)
        if isinstance(model, FfnDie):
            return
        dtype, die = model.embed.dtype, self._world.place.number
        self._cache = KvCache(
            model.spec,
            sequences=len(self.layout.held(self.layout.group_of(die))),
            blocks=blocks,
            dtype=dtype,
            block_tokens=block_tokens,
        )
        rope = rope_table(model.spec, max(lengths), dtype)
        self._packer = Packer(self.layout, die, self._cache, rope)

    @property
    def recorder(self) -> Recorder:
        """Where the model's ops are recorded."""
        return self._model.backend.recorder

    def prefill(self, prompts: Sequence[Sequence[int]]) -> StepOutput:
        """All prompts in one pass, packed."""
        return self._run("prefill", prompts)

    def step(self, tokens: Sequence[int]) -> StepOutput:
        """One token more for every sequence."""
        return self._run("decode", [[token] for token in tokens])

    @torch.inference_mode()
    def _run(self, phase: Phase, new_tokens: Sequence[Sequence[int]]) -> StepOutput:
        """One pass: the own rows' output, but the ``tokens`` of all sequences."""
        counts = [len(new) for new in new_tokens]
        parts = self.layout.parts(phase, counts)
        last = last_rows(self.layout, parts, counts)
        model = self._model
        if isinstance(model, FfnDie):
            model(phase, [part.height for part in parts])
            nothing = torch.empty(0)
            output = StepOutput(nothing, nothing, torch.zeros(len(last.rows[0]), dtype=torch.long))
        else:
            step = self._packer.pack(phase, new_tokens, self._lengths, parts, last)
            output = model(step, self._cache)
        self._lengths = [
            length + count for length, count in zip(self._lengths, counts, strict=True)
        ]
        return replace(output, tokens=self._all_tokens(output.tokens, last))

    def _all_tokens(self, tokens: torch.Tensor, last: LastRows) -> torch.Tensor:
        """The new token of every sequence, from the dies that made them."""
        made = self._world.gather(tokens).tolist()
        found = {
            sequence: token
            for die, sequences in enumerate(last.sequences)
            for sequence, token in zip(sequences, made[die], strict=True)
            if sequence is not None
        }
        return torch.tensor([found[sequence] for sequence in range(len(self._lengths))])


def rank_blocks(
    deployment: Deployment,
    rank: int,
    lengths: Sequence[int],
    cache_tokens: int | None,
    block_tokens: int = BLOCK_TOKENS,
) -> int:
    """Blocks of a rank's pool of ``cache_tokens`` tokens; ``None``: as many as it needs.

    Raises:
        InputError: the sequences of its attention group do not fit that pool.
    """
    place = place_of(deployment, rank)
    if place.role == "ffn":
        return 0
    layout, kvp = Layout(deployment, len(lengths)), deployment.attention.kvp
    held = layout.held(layout.group_of(place.number))
    own = [local_kv_tokens(lengths[sequence], kvp, place.number % kvp) for sequence in held]
    return pool_blocks(own, cache_tokens, block_tokens)


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
