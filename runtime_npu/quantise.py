"""Symmetric int8 per row: of weights (a row is an output channel) and activations (a token)."""

from __future__ import annotations

from typing import NamedTuple

import torch

LARGEST = 127
"""The largest int8 used: -128 has no counterpart."""


class Quantised(NamedTuple):
    """``values`` int8 [..., n], and the fp32 ``scale`` [...] of each row: x = scale x value."""

    values: torch.Tensor
    scale: torch.Tensor


def quantise_rows(x: torch.Tensor) -> Quantised:
    """The int8 nearest to each row of ``x`` [..., n] over its scale: largest magnitude / 127.

    A row of zeros has scale 1.
    """
    wide = x.float()
    largest = wide.abs().amax(-1)
    scale = (largest / LARGEST).masked_fill(largest == 0, 1.0)
    # Over a tiny scale the largest could round to 128.
    values = (wide / scale.unsqueeze(-1)).round().clamp(-LARGEST, LARGEST)
    return Quantised(values.to(torch.int8), scale)
