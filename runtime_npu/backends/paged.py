"""Absorbed attention over a paged latent cache, on the online softmax."""

from __future__ import annotations

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
    block_tokens = cache.latent.shape[1]
    pages = max(1, BLOCK_TOKENS // block_tokens)
    for first in range(0, -(-tokens // block_tokens), pages):
        start = first * block_tokens
        count = min(tokens - start, pages * block_tokens)
        latent = cache.latent[blocks[first : first + pages]].flatten(0, 1)[:count].float()
        k_rope = cache.rope[blocks[first : first + pages]].flatten(0, 1)[:count].float()
        scores = torch.addmm(flat_rope @ k_rope.T, flat_latent, latent.T).mul_(scale)
        softmax.add(hide(scores, start, seen), latent)
    attended = softmax.result()
    return Attended(attended.output.view(rows, heads, kv_rank), attended.lse.view(rows, heads))
