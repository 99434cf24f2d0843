"""Absorbed attention over a paged latent cache, on the online softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.online_softmax import BLOCK_TOKENS, Attended, OnlineSoftmax, hide


def attend_pages(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: LatentCache,
    blocks: torch.Tensor,
    tokens: int,
    *,
    scale: float,
    visible: torch.Tensor,
) -> Attended:
    """Attention of one sequence's rows over its first ``tokens`` cached tokens.

    ``q_latent`` is [rows, heads, kv rank], ``q_rope`` [rows, heads, rope]; ``blocks`` are the
    sequence's blocks in order.  Row r sees the first ``visible[r]`` of the tokens.  Output
    [rows, heads, kv rank] and log-sum-exp [rows, heads], fp32; without tokens 0 and -inf.
    """
    rows, heads, kv_rank = q_latent.shape
    # All heads share the keys, so that heads and rows are one side of a matrix product.
    flat_latent, flat_rope = q_latent.flatten(0, 1).float(), q_rope.flatten(0, 1).float()
    seen = visible.repeat_interleave(heads)
    softmax = OnlineSoftmax((rows * heads,), kv_rank)
    block_tokens, start = cache.latent.shape[1], 0
    needed = blocks[: -(-tokens // block_tokens)].tolist()
    for run in _runs(needed, max(1, BLOCK_TOKENS // block_tokens)):
        latent = cache.latent[run].flatten(0, 1)[: tokens - start].float()
        k_rope = cache.rope[run].flatten(0, 1)[: tokens - start].float()
        scores = torch.addmm(flat_rope @ k_rope.T, flat_latent, latent.T).mul_(scale)
        softmax.add(hide(scores, start, seen), latent)
        start += len(latent)
    attended = softmax.result()
    return Attended(attended.output.view(rows, heads, kv_rank), attended.lse.view(rows, heads))


def _runs(blocks: Sequence[int], most: int) -> Iterator[slice]:
    """Neighbours in the pool, at most ``most`` at a time: read where they lie, not copied."""
    first = 0
    for end in range(1, len(blocks) + 1):
        goes_on = end < len(blocks) and blocks[end] == blocks[end - 1] + 1
        if not goes_on or end - first == most:
            yield slice(blocks[first], blocks[end - 1] + 1)
            first = end
