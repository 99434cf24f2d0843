"""The inputs of a forward pass on one rank: token rows of several sequences, packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad

from runtime_npu.kv_cache import KvCache
from runtime_npu.parallel.layout import LastRows, Layout, Part
from runtime_npu.rope import Rope
from runtime_npu.sampling import Draw, Sampling, draw
from twin.graph.shapes import local_kv_tokens
from twin.workload import Phase


@dataclass(frozen=True, slots=True)
class Batch:
    """What attention needs of T rows of S sequences, those of a sequence side by side.

    T counts the rows of the whole attention group, padding included.  ``slots`` [T] says
    where each row's KV goes (-1: nowhere on this rank), ``rope`` has T rows, ``block_table``
    is [S, blocks].  ``rows`` and ``kv_lengths`` count, per sequence, the rows in this pass and
    the tokens in this rank's cache after it; padding rows are sequences without tokens.
    """

    slots: torch.Tensor
    rope: Rope
    block_table: torch.Tensor
    phase: Phase
    rows: tuple[int, ...]
    kv_lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One pass on an attention rank.

    ``tokens`` are the ids of the embedding group's rows, rank by rank.  ``batches`` are the
    micro-batches, of which this rank holds ``heights`` rows between attentions, one behind
    the other; ``last_rows`` are indices into these, ``draw`` their draws (``None``: greedy).
    """

    tokens: torch.Tensor
    batches: tuple[Batch, ...]
    heights: tuple[int, ...]
    last_rows: torch.Tensor
    draw: Draw | None

    @property
    def phase(self) -> Phase:
        """Of all micro-batches."""
        return self.batches[0].phase


class Packer:
    """Packs the passes of one attention die: ``die`` is its number in its role.

    Tokens are drawn by ``sampling``, or greedily without it.
    """

    def __init__(
        self,
        layout: Layout,
        die: int,
        cache: KvCache,
        rope: Rope,
        *,
        sampling: Sampling | None,
        vocab_size: int,
    ) -> None:
        self._sampling, self._vocab_size = sampling, vocab_size
        role = layout.deployment.attention
        self._layout, self._die, self._cache, self._rope = layout, die, cache, rope
        self._group = layout.group_of(die)
        self._kvp, self._shard = role.kvp, die % role.kvp
        first = die // role.embed_tp * role.embed_tp
        self._embed_dies = range(first, first + role.embed_tp)

    def pack(
        self,
        phase: Phase,
        new_tokens: Sequence[Sequence[int]],
        cached: Sequence[int],
        parts: Sequence[Part],
        last: LastRows,
    ) -> Step:
        """Pack new tokens of all sequences behind the ``cached`` tokens that each has.

        Prefill attends to the rows of the pass alone, so there nothing may be cached.
        """
        held = self._layout.held(self._group)
        lengths = [start + len(new) for start, new in zip(cached, new_tokens, strict=True)]
        self._cache.grow([self._local(lengths[sequence]) for sequence in held])
        return Step(
            tokens=self._embedded(new_tokens, parts),
            batches=tuple(self._batch(phase, cached, lengths, part) for part in parts),
            heights=tuple(part.height for part in parts),
            last_rows=torch.tensor(last.rows[self._die]),
            draw=self._draw(cached, last),
        )

    def _draw(self, cached: Sequence[int], last: LastRows) -> Draw | None:
        """For the tokens behind the last rows."""
        if self._sampling is None:
            return None
        owners = last.owners[self._die]
        places = [row and (row[0], cached[row[0]] + row[1] + 1) for row in owners]
        return draw(self._sampling, places, self._vocab_size)

    def follow(self, step: Step, following: Sequence[Sequence[int]], parts: Sequence[Part]) -> Step:
        """The same rows for an MTP pass, in one batch, with the token ``following`` each."""
        batch, tp = _joined(step.batches), self._layout.deployment.attention.attention_tp
        if tp > 1 and len(step.batches) > 1:
            batch = _row_by_row(batch, _gathered(step.heights, tp))
        return replace(
            step,
            tokens=self._embedded(following, parts),
            batches=(batch,),
            heights=(sum(step.heights),),
        )

    def _embedded(self, tokens: Sequence[Sequence[int]], parts: Sequence[Part]) -> torch.Tensor:
        """The ids of the embedding group's rows, rank by rank; padding rows have id 0."""
        rows = [row for die in self._embed_dies for row in self._layout.rows_on(die, parts)]
        return torch.tensor([0 if row is None else tokens[row[0]][row[1]] for row in rows])

    def _batch(
        self, phase: Phase, cached: Sequence[int], lengths: Sequence[int], part: Part
    ) -> Batch:
        rows, sequences = part.rows[self._group], part.sequences[self._group]
        first = self._layout.held(self._group).start
        counts = [lengths[sequence] - cached[sequence] for sequence in sequences]
        extra = len(rows) - sum(counts)
        # Padding rows see each other in prefill: no more of them than of the longest sequence.
        most = 1 if phase == "decode" else max(counts, default=extra)
        padding = [min(most, extra - start) for start in range(0, extra, max(1, most))]
        positions = [0 if row is None else cached[row[0]] + row[1] for row in rows]
        slots = [
            -1
            if row is None or position % self._kvp != self._shard
            else self._cache.slot(row[0] - first, position // self._kvp)
            for row, position in zip(rows, positions, strict=True)
        ]
        table = self._cache.block_table([sequence - first for sequence in sequences])
        return Batch(
            slots=torch.tensor(slots),
            rope=self._rope.rows(torch.tensor(positions)),
            block_table=torch.cat((table, table.new_zeros(len(padding), table.shape[1]))),
            phase=phase,
            rows=(*counts, *padding),
            kv_lengths=(*(self._local(lengths[s]) for s in sequences), *[0] * len(padding)),
        )

    def _local(self, length: int) -> int:
        """Tokens of a sequence of ``length`` that this die holds."""
        return local_kv_tokens(length, self._kvp, self._shard)


def _joined(batches: Sequence[Batch]) -> Batch:
    """Micro-batches one behind the other."""
    if len(batches) == 1:
        return batches[0]
    width = max(batch.block_table.shape[1] for batch in batches)
    tables = [pad(batch.block_table, (0, width - batch.block_table.shape[1])) for batch in batches]
    return Batch(
        slots=torch.cat([batch.slots for batch in batches]),
        rope=Rope(
            torch.cat([batch.rope.cos for batch in batches]),
            torch.cat([batch.rope.sin for batch in batches]),
        ),
        block_table=torch.cat(tables),
        phase=batches[0].phase,
        rows=tuple(count for batch in batches for count in batch.rows),
        kv_lengths=tuple(length for batch in batches for length in batch.kv_lengths),
    )


def _gathered(heights: Sequence[int], dies: int) -> list[int]:
    """Which row of the joined micro-batches each row of their attention group is, die by die.

    A die holds ``heights`` rows of the micro-batches, one behind the other.
    """
    starts = [dies * sum(heights[:part]) for part in range(len(heights))]
    return [
        start + die * height + row
        for die in range(dies)
        for start, height in zip(starts, heights, strict=True)
        for row in range(height)
    ]


def _row_by_row(batch: Batch, order: Sequence[int]) -> Batch:
    """The rows of a decode batch in another order, which need not keep sequences together.

    So each row is a sequence of its own: its KV lengths end with the row itself.
    """
    own = [
        (sequence, max(0, length - count + row + 1))
        for sequence, (count, length) in enumerate(zip(batch.rows, batch.kv_lengths, strict=True))
        for row in range(count)
    ]
    at = torch.tensor(order)
    return replace(
        batch,
        slots=batch.slots[at],
        rope=Rope(batch.rope.cos[at], batch.rope.sin[at]),
        block_table=batch.block_table[torch.tensor([own[row][0] for row in order])],
        rows=(1,) * len(order),
        kv_lengths=tuple(own[row][1] for row in order),
    )
