"""The inputs of a forward pass: packed token rows of several sequences, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime_npu.kv_cache import KvCache
from runtime_npu.rope import Rope
from twin.workload import Phase


@dataclass(frozen=True, slots=True)
class Batch:
    """T token rows of B sequences, those of a sequence side by side.

    ``tokens`` and ``slots`` are [T] (ids, and where each row's KV goes), ``rope`` has T
    rows, ``block_table`` is [B, blocks].  ``rows`` and ``kv_lengths`` count, per sequence,
    the rows in this pass and the tokens in the cache after it.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    rope: Rope
    block_table: torch.Tensor
    phase: Phase
    rows: tuple[int, ...]
    kv_lengths: tuple[int, ...]

    @property
    def last_rows(self) -> torch.Tensor:
        """Index of each sequence's last row [B]."""
        return torch.tensor(self.rows).cumsum(0) - 1


def pack(
    phase: Phase,
    new_tokens: Sequence[Sequence[int]],
    cached: Sequence[int],
    cache: KvCache,
    rope: Rope,
) -> Batch:
    """Pack each sequence's new tokens behind the ``cached`` tokens that it has in the cache.

    Prefill attends to the rows of the pass alone, so there nothing may be cached; decode
    takes one row per sequence.
    """
    rows = tuple(len(tokens) for tokens in new_tokens)
    lengths = tuple(start + count for start, count in zip(cached, rows, strict=True))
    cache.grow(lengths)
    positions = [
        position
        for start, length in zip(cached, lengths, strict=True)
        for position in range(start, length)
    ]
    return Batch(
        tokens=torch.tensor([token for tokens in new_tokens for token in tokens]),
        slots=cache.slots(cached, lengths),
        rope=rope.rows(torch.tensor(positions)),
        block_table=cache.block_table(),
        phase=phase,
        rows=rows,
        kv_lengths=lengths,
    )
