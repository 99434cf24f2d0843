"""Numerics of attention: blocked online softmax, fp32 statistics, LSE out, mergeable parts.

A softmax over all tokens needs only three numbers per row while tokens arrive block by
block: the largest score m so far, the sum l of exp(score - m), and the sum of exp(score - m)
x value (Milakov and Gimelshein 2018; Rabe and Staats 2021).  The log-sum-exp m + log l lets
attentions over parts of the tokens be merged exactly.

Rows that see no token are legal everywhere (an empty shard of a split KV cache): their
output is zero and their log-sum-exp is -inf, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BLOCK_TOKENS = 512
"""Tokens that one step of the online softmax takes in."""


@dataclass(frozen=True, slots=True)
class Attended:
    """Attention over some tokens: ``output`` [..., rows, v] and ``lse`` [..., rows], fp32.

    ``lse`` is the natural logarithm of the sum of exp(score) over the tokens seen.
    """

    output: torch.Tensor
    lse: torch.Tensor


class OnlineSoftmax:
    """Softmax-weighted sum of values for [..., rows], fed block by block.

    Args:
        rows: the leading shape [..., rows].
        width: elements v of a value.
    """

    def __init__(self, rows: Sequence[int], width: int) -> None:
        self._largest = torch.full((*rows, 1), -torch.inf)
        self._sum = torch.zeros(*rows, 1)
        self._weighted = torch.zeros(*rows, width)

    def add(self, scores: torch.Tensor, values: torch.Tensor) -> None:
        """Take in a block: ``scores`` [..., rows, tokens], ``values`` [..., tokens, v].

        Scores are scaled already; -inf hides a token from a row.
        """
        if scores.shape[-1] == 0:
            return
        largest = torch.maximum(self._largest, scores.amax(-1, keepdim=True).float())
        # Against -inf itself the exponents would be NaN; any finite number makes them -inf.
        finite = largest.masked_fill(largest == -torch.inf, 0.0)
        fade = torch.exp(self._largest - finite)
        weights = torch.exp(scores.float() - finite)
        self._sum = self._sum * fade + weights.sum(-1, keepdim=True)
        self._weighted = self._weighted * fade + weights @ values.float()
        self._largest = largest

    def result(self) -> Attended:
        """Attention over the blocks so far."""
        # A row that saw a token has a sum of at least 1: that of its largest score.
        output = self._weighted / self._sum.clamp_min(1.0)
        return Attended(output, (self._largest + self._sum.log()).squeeze(-1))


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    visible: torch.Tensor | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> Attended:
    """Attention of ``queries`` [..., rows, k] over ``keys`` [..., tokens, k].

    ``values`` are [..., tokens, v].  Row r sees the first ``visible[..., r]`` tokens (all
    without it; at 0 none), which expresses causal masks and ragged lengths.
    """
    softmax = OnlineSoftmax(queries.shape[:-1], values.shape[-1])
    for start in range(0, keys.shape[-2], block_tokens):
        block = slice(start, start + block_tokens)
        block_keys = keys[..., block, :].float()
        scores = queries.float() @ block_keys.transpose(-1, -2) * scale
        softmax.add(hide(scores, start, visible), values[..., block, :])
    return softmax.result()


def hide(scores: torch.Tensor, start: int, visible: torch.Tensor | None) -> torch.Tensor:
    """``scores`` [..., rows, tokens] of tokens from ``start`` on, -inf where a row sees none.

    ``visible`` [..., rows] says how many tokens, counted from 0, each row sees.
    """
    end = start + scores.shape[-1]
    if visible is None or int(visible.min()) >= end:
        return scores
    return scores.masked_fill(torch.arange(start, end) >= visible.unsqueeze(-1), -torch.inf)


def merge(parts: Sequence[Attended]) -> Attended:
    """Attention over all tokens from attentions over disjoint parts of them (at least one)."""
    lse = torch.stack([part.lse for part in parts])
    largest = lse.amax(0)
    finite = largest.masked_fill(largest == -torch.inf, 0.0)
    weights = torch.exp(lse - finite)
    total = weights.sum(0)
    outputs = torch.stack([part.output for part in parts])
    output = (outputs * weights.unsqueeze(-1)).sum(0) / total.clamp_min(1.0).unsqueeze(-1)
    return Attended(output, finite + total.log())
