"""Paged latent KV cache: a fixed pool of blocks and the block tables of the sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hardware_models.errors import InputError
from twin.model_spec import ModelSpec

BLOCK_TOKENS = 128
"""Tokens per block, as the published recipe has it."""


@dataclass(frozen=True, slots=True)
class LatentCache:
    """Cache of one attention: the scaled, normed latent and the rotated key part.

    ``latent`` is [blocks, block tokens, kv_lora_rank], ``rope`` [blocks, block tokens,
    qk_rope_head_dim].  A slot is block x block tokens + offset.  ``micro_batch`` is whose
    sequences are read and written; others have other blocks.
    """

    latent: torch.Tensor
    rope: torch.Tensor
    micro_batch: int = 0

    def write(self, slots: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor) -> None:
        """Put rows ``latent`` and ``rope`` [T, ...] into ``slots`` [T]; -1: nowhere."""
        kept = slots >= 0
        self.latent.flatten(0, 1)[slots[kept]] = latent[kept]
        self.rope.flatten(0, 1)[slots[kept]] = rope[kept]


def pool_blocks(
    lengths: Sequence[int], cache_tokens: int | None, block_tokens: int = BLOCK_TOKENS
) -> int:
    """Blocks of a pool of ``cache_tokens`` tokens; ``None``: as many as the sequences need.

    Raises:
        InputError: sequences that grow to ``lengths`` tokens do not fit that pool.
    """
    needed = sum(-(-length // block_tokens) for length in lengths)
    blocks = needed if cache_tokens is None else cache_tokens // block_tokens
    if blocks < needed:
        raise InputError(
            "cache_tokens",
            cache_tokens,
            f"at least {needed * block_tokens} ({needed} blocks of {block_tokens}) for these "
            "prompts and max_new_tokens",
        )
    return blocks


class KvCache:
    """The caches of all attentions over one pool of blocks: two a layer, one per MTP pass.

    All memory is taken at construction.  Sequences get blocks as they grow, lowest free
    block first, so a block table is the same for the same history.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        sequences: int,
        blocks: int,
        dtype: torch.dtype,
        block_tokens: int = BLOCK_TOKENS,
        mtp_passes: int = 0,
    ) -> None:
        self.block_tokens = block_tokens
        self.blocks = blocks
        self._used = 0
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        self.attentions = tuple(
            LatentCache(
                torch.zeros(blocks, block_tokens, spec.kv_lora_rank, dtype=dtype),
                torch.zeros(blocks, block_tokens, spec.qk_rope_head_dim, dtype=dtype),
            )
            for _ in range(2 * spec.num_layers + mtp_passes)
        )

    def grow(self, lengths: Sequence[int]) -> None:
        """Give every sequence the blocks for its new length in tokens; the pool must have them."""
        for table, length in zip(self._tables, lengths, strict=True):
            while len(table) * self.block_tokens < length:
                assert self._used < self.blocks, "pool_blocks was not asked"
                table.append(self._used)
                self._used += 1

    def block_table(self, sequences: Sequence[int]) -> torch.Tensor:
        """Blocks of ``sequences`` [sequences, most blocks]; unused entries are 0."""
        tables = [self._tables[sequence] for sequence in sequences]
        width = max((len(table) for table in tables), default=0)
        return torch.tensor(
            [table + [0] * (width - len(table)) for table in tables], dtype=torch.long
        ).view(len(tables), width)

    def slot(self, sequence: int, position: int) -> int:
        """Where the token at ``position`` of a sequence lies."""
        block = self._tables[sequence][position // self.block_tokens]
        return block * self.block_tokens + position % self.block_tokens
