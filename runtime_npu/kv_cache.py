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
    qk_rope_head_dim].  A slot is block x block tokens + offset.
    """

    latent: torch.Tensor
    rope: torch.Tensor


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
    """The caches of all attentions over one pool of blocks.

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
            for _ in range(2 * spec.num_layers)
        )

    def grow(self, lengths: Sequence[int]) -> None:
        """Give every sequence the blocks for its new length in tokens; the pool must have them."""
        for table, length in zip(self._tables, lengths, strict=True):
            while len(table) * self.block_tokens < length:
                assert self._used < self.blocks, "pool_blocks was not asked"
                table.append(self._used)
                self._used += 1

    def block_table(self) -> torch.Tensor:
        """Blocks of each sequence [sequences, most blocks]; unused entries are 0."""
        width = max(len(table) for table in self._tables)
        return torch.tensor([table + [0] * (width - len(table)) for table in self._tables])

    def slots(self, starts: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Slots of tokens start .. length - 1 of every sequence, packed [T]."""
        return torch.tensor(
            [
                table[position // self.block_tokens] * self.block_tokens
                + position % self.block_tokens
                for table, start, length in zip(self._tables, starts, lengths, strict=True)
                for position in range(start, length)
            ]
        )
