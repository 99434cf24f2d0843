"""Seeded sampling whose draws belong to places in texts, and not to the order of computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hardware_models.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Tokens are drawn from softmax(logits / temperature), cut to the nucleus ``top_p``.

    The draw for a token depends on ``seed``, on its sequence and its position there alone:
    batches, layouts and drafts change no text.
    """

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Draw:
    """``noise`` [B, vocabulary] for B rows: Gumbel, so that the largest sum is a fair draw.

    The largest of log p + Gumbel noise is distributed as p (Gumbel 1954).
    """

    temperature: float
    top_p: float
    noise: torch.Tensor


def sampling(temperature: float, top_p: float, seed: int) -> Sampling | None:
    """How tokens are chosen; ``None``: greedily (temperature 0).

    Raises:
        InputError: a number out of range.
    """
    if not 0.0 <= temperature <= 1e3:
        raise InputError("temperature", temperature, "0 (greedy) to 1000")
    if not 0.0 < top_p <= 1.0:
        raise InputError("top_p", top_p, "above 0, to 1")
    if temperature == 0.0:
        return None
    return Sampling(temperature=temperature, top_p=top_p, seed=seed)


def draw(choice: Sampling, places: Sequence[tuple[int, int] | None], vocab_size: int) -> Draw:
    """The draws for tokens at ``places``: (sequence, position), ``None`` where nobody looks."""
    noise = torch.zeros(len(places), vocab_size)
    for row, place in enumerate(places):
        if place is not None:
            # A counter-based generator: any place's numbers without those before it.
            bits = np.random.Philox(key=choice.seed % 2**64, counter=[0, 0, *place])
            noise[row] = torch.from_numpy(np.random.Generator(bits).gumbel(size=vocab_size))
    return Draw(choice.temperature, choice.top_p, noise)


def nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """``logits`` [B, n], -inf but for the fewest most likely tokens that hold ``top_p``."""
    if top_p == 1.0:
        return logits
    ordered, order = logits.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    outside = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return logits.masked_fill(outside, -torch.inf)
