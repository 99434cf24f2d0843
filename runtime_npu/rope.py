"""Rotary position embedding: the cosine and sine table, computed once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from twin.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Rope:
    """Cosine and sine per position and rotated pair, each [positions, qk_rope_head_dim / 2].

    Pair i of a head is its elements 2 i and 2 i + 1 (the interleaved layout), turned by
    position x theta^(-2 i / qk_rope_head_dim).
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def rows(self, positions: torch.Tensor) -> Rope:
        """The table's rows at ``positions`` [T]."""
        return Rope(self.cos[positions], self.sin[positions])


def rope_table(spec: ModelSpec, positions: int, dtype: torch.dtype) -> Rope:
    """The table for ``positions`` positions; angles in fp32, the result in ``dtype``."""
    pair = torch.arange(0, spec.qk_rope_head_dim, 2, dtype=torch.float32)
    frequency = 1.0 / spec.rope_theta ** (pair / spec.qk_rope_head_dim)
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
    return Rope(angle.cos().to(dtype), angle.sin().to(dtype))
