"""Generation: one prefill of all prompts, then steps of one token and its drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hardware_models.errors import InputError
from runtime_npu.batch import Packer, Step
from runtime_npu.executor import Executor, ModelExecutor
from runtime_npu.kv_cache import BLOCK_TOKENS, KvCache, pool_blocks
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash, StepOutput
from runtime_npu.parallel.groups import place_of
from runtime_npu.parallel.layout import LastRows, Layout, Part, last_rows
from runtime_npu.parallel.world import World, alone
from runtime_npu.record import OpRecord, Recorder
from runtime_npu.rope import rope_table
from runtime_npu.sampling import Sampling
from runtime_npu.speculate import accept, shift
from twin.deployment import Deployment
from twin.graph.shapes import local_kv_tokens
from twin.workload import Phase

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """``token_ids``: new tokens per prompt, the end token included.  ``prefill_s`` and
    ``step_s`` are wall times, drafts included; ``forward_s`` is how long the passes of each step
    held the device (nothing on a CPU).  ``steps`` are the records of the decode steps and
    ``accepted`` the accepted drafts in each, of every sequence that had not ended.
    """  # noqa: D205

    token_ids: tuple[Tokens, ...]
    prefill_s: float
    step_s: tuple[float, ...]
    forward_s: tuple[float, ...]
    prefill_ops: tuple[OpRecord, ...]
    steps: tuple[tuple[OpRecord, ...], ...]
    accepted: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Pass:
    """The last pass: its parts, output rows and how many a sequence, rows and hidden states."""

    parts: tuple[Part, ...]
    last: LastRows
    counts: tuple[int, ...]
    step: Step | None
    hidden: torch.Tensor


class Decoder:
    """One rank's side of a batch: prefill once, then step by step.

    All ranks know all sequences, and learn all new tokens behind every pass; a rank's cache
    holds those of its own attention group.  ``lengths`` are the most tokens that each sequence
    reaches, ``blocks`` the size of this rank's pool (:func:`rank_blocks`).  ``executor`` runs
    the passes of ``model`` (``None``: the model does).
    """

    def __init__(
        self,
        model: LongcatFlash | FfnDie,
        lengths: Sequence[int],
        blocks: int,
        world: World | None = None,
        *,
        block_tokens: int = BLOCK_TOKENS,
        sampling: Sampling | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._model = model
        self.executor = executor or ModelExecutor(model)
        self._world = world or alone()
        self.layout = Layout(self._world.deployment, len(lengths), model.prefill)
        self._lengths = [0] * len(lengths)
        if isinstance(model, FfnDie):
            return
        dtype, die = model.embed.dtype, self._world.place.number
        held = self.layout.held(self.layout.group_of(die))
        with torch.device(self.executor.cache_device):
            self._cache = KvCache(
                model.spec,
                sequences=len(held),
                blocks=blocks,
                dtype=dtype,
                block_tokens=block_tokens,
                mtp_passes=model.next_n,
            )
        longest = max((lengths[sequence] for sequence in held), default=1)
        self.executor.use_cache(self._cache, table_width=-(-longest // block_tokens))
        rope = rope_table(model.spec, max(lengths), dtype)
        self._packer = Packer(
            self.layout,
            die,
            self._cache,
            rope,
            sampling=sampling,
            vocab_size=model.spec.vocab_size,
        )

    @property
    def recorder(self) -> Recorder:
        """Where the model's ops are recorded."""
        return self._model.backend.recorder

    @property
    def next_n(self) -> int:
        """Drafts of each sequence and step."""
        return self._model.next_n

    def prefill(self, prompts: Sequence[Sequence[int]]) -> StepOutput:
        """All prompts in one pass, packed."""
        output = self._run("prefill", prompts, 1)
        self.keep([len(prompt) for prompt in prompts])
        return output

    def step(self, tokens: Sequence[int]) -> StepOutput:
        """One token more for every sequence."""
        output = self.verify([[token] for token in tokens])
        self.keep([1] * len(tokens))
        return output

    def verify(self, rows: Sequence[Sequence[int]]) -> StepOutput:
        """A decode pass over some ``rows`` of each sequence, equally many, none of them kept."""
        return self._run("decode", rows, len(rows[0]))

    def keep(self, counts: Sequence[int]) -> None:
        """Keep the first ``counts`` rows of each sequence that the last pass ran."""
        self._lengths = [
            length + count for length, count in zip(self._lengths, counts, strict=True)
        ]

    @torch.inference_mode()
    def draft(self, following: Sequence[Sequence[int]], at: Sequence[int]) -> list[list[int]]:
        """The drafts of each sequence, by MTP passes over the rows of the last pass.

        ``following`` are the tokens behind these rows, ``at`` the row of each sequence that is
        its last, so that drafts begin one token behind the token that follows it.
        """
        model, run = self._model, self._last_pass
        hidden = run.hidden
        drafts: list[list[int]] = [[] for _ in at]
        for number in range(self.next_n):
            if isinstance(model, FfnDie) or run.step is None:
                own = torch.zeros(len(run.last.rows[0]), dtype=torch.long)
            else:
                step = self._packer.follow(run.step, following, run.parts)
                output = self.executor.draft(number, step, hidden)
                hidden, own = output.hidden, output.tokens
            made = self._all_tokens(own, run.last)
            for sequence, row in enumerate(at):
                # Of a prompt only the last row has a token.
                first = run.counts[sequence] - len(made[sequence])
                drafts[sequence].append(made[sequence][row - first])
            following = [
                shift(tokens, row, new[-1])
                for tokens, row, new in zip(following, at, drafts, strict=True)
            ]
        return drafts

    @torch.inference_mode()
    def _run(self, phase: Phase, new_tokens: Sequence[Sequence[int]], outputs: int) -> StepOutput:
        """One pass: the own rows' output, but the ``tokens`` of all sequences.

        The last ``outputs`` rows of each sequence have logits and tokens.
        """
        counts = tuple(len(new) for new in new_tokens)
        parts = self.layout.parts(phase, counts)
        last = last_rows(self.layout, parts, counts, outputs)
        model, step = self._model, None
        if isinstance(model, FfnDie):
            self.executor.serve(phase, [part.height for part in parts])
            nothing = torch.empty(0)
            output = StepOutput(nothing, nothing, torch.zeros(len(last.rows[0]), dtype=torch.long))
        else:
            step = self._packer.pack(phase, new_tokens, self._lengths, parts, last)
            output = self.executor.forward(step)
        self._last_pass = _Pass(parts, last, counts, step, output.hidden)
        tokens = [token for own in self._all_tokens(output.tokens, last) for token in own]
        return replace(output, tokens=torch.tensor(tokens))

    def _all_tokens(self, tokens: torch.Tensor, last: LastRows) -> list[list[int]]:
        """The new tokens of every sequence, from the dies that made them."""
        made = self._world.gather(tokens).tolist()
        found = {
            row: token
            for die, owners in enumerate(last.owners)
            for row, token in zip(owners, made[die], strict=True)
            if row is not None
        }
        every: list[list[int]] = [[] for _ in self._lengths]
        for (sequence, _), token in sorted(found.items()):
            every[sequence].append(token)
        return every


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


class _Texts:
    """The new tokens of each sequence, until it has so many, or an end token."""

    def __init__(self, count: int, max_new_tokens: int, end_tokens: Sequence[int]) -> None:
        self.new: list[list[int]] = [[] for _ in range(count)]
        self.ended = [False] * count
        self._most, self._ends = max_new_tokens, end_tokens

    def add(self, sequence: int, tokens: Sequence[int]) -> None:
        """Append ``tokens`` up to the end of the sequence."""
        for token in tokens:
            if not self.ended[sequence]:
                self.new[sequence].append(token)
                done = len(self.new[sequence]) == self._most
                self.ended[sequence] = done or token in self._ends


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    end_tokens: Sequence[int] = (),
    warmup_steps: int = 0,
) -> Generation:
    """New tokens for every prompt, until each has ``max_new_tokens`` or an end token.

    A step runs the last token of each sequence and its drafts, if the model makes any.  A
    sequence that has ended stays in the batch (its shape is fixed) and repeats its last step.
    The first step runs ``warmup_steps`` times more before it counts: it writes the same KV.

    Raises:
        InputError: the logits are not finite.
    """
    recorder = decoder.recorder
    recorder.take()
    texts = _Texts(len(prompts), max_new_tokens, end_tokens)

    start = time.perf_counter()
    first = _finite(decoder.prefill(prompts)).tokens.tolist()
    following = [[*prompt[1:], token] for prompt, token in zip(prompts, first, strict=True)]
    drafts = decoder.draft(following, [len(prompt) - 1 for prompt in prompts])
    prefill_s = time.perf_counter() - start
    prefill_ops = recorder.take()
    for sequence, token in enumerate(first):
        texts.add(sequence, [token])

    rows = [[token, *own] for token, own in zip(first, drafts, strict=True)]
    for _ in range(0 if all(texts.ended) else warmup_steps):
        warm = decoder.verify(rows).tokens.view(len(rows), -1).tolist()
        decoder.draft(warm, [0] * len(rows))
    recorder.take()
    decoder.executor.take_forward_s()
    step_s: list[float] = []
    forward_s: list[float] = []
    steps: list[tuple[OpRecord, ...]] = []
    accepted: list[tuple[int, ...]] = []
    while not all(texts.ended):
        start = time.perf_counter()
        tokens = _finite(decoder.verify(rows)).tokens
        chosen: list[list[int]] = tokens.view(len(rows), -1).tolist()
        new = [accept(own[1:], theirs) for own, theirs in zip(rows, chosen, strict=True)]
        live = [sequence for sequence, ended in enumerate(texts.ended) if not ended]
        for sequence in live:
            texts.add(sequence, new[sequence])
        decoder.keep([0 if ended else len(n) for ended, n in zip(texts.ended, new, strict=True)])
        drafts = decoder.draft(chosen, [len(own) - 1 for own in new])
        for sequence, ended in enumerate(texts.ended):
            if not ended:
                rows[sequence] = [new[sequence][-1], *drafts[sequence]]
        step_s.append(time.perf_counter() - start)
        forward = decoder.executor.take_forward_s()
        forward_s += [] if forward is None else [forward]
        steps.append(recorder.take())
        accepted.append(tuple(len(new[sequence]) - 1 for sequence in live))
    return Generation(
        token_ids=tuple(tuple(tokens) for tokens in texts.new),
        prefill_s=prefill_s,
        step_s=tuple(step_s),
        forward_s=tuple(forward_s),
        prefill_ops=prefill_ops,
        steps=tuple(steps),
        accepted=tuple(accepted),
    )


def _finite(output: StepOutput) -> StepOutput:
    if not torch.isfinite(output.logits).all():
        raise InputError("checkpoint", "logits that are not finite", "finite weights")
    return output
