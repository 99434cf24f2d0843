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


SCALE_BYTES = 4
"""Of a row's fp32 scale, which travels as the last bytes of the row."""


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


def join_scale(quantised: Quantised) -> torch.Tensor:
    """int8 rows [N, n + 4 bytes] that end in their scales, so that one exchange takes both."""
    return torch.cat((quantised.values, quantised.scale[:, None].view(torch.int8)), 1)


def split_scale(rows: torch.Tensor) -> Quantised:
    """What :func:`join_scale` joined: values [N, n] and scales [N]."""
    values, scale = torch.split(rows, [rows.shape[1] - SCALE_BYTES, SCALE_BYTES], 1)
    return Quantised(values.contiguous(), scale.contiguous().view(torch.float32)[:, 0])
