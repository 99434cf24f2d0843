"""Real ids in place of zero experts' ones, for transfers that know no others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from twin.validate.deployment import MOST_EXPERTS


@dataclass(frozen=True, slots=True)
class Choices:
    """A router's choices for transfers that know real experts alone.

    ``ids`` [T, topk] are all real, no two of a row alike; ``weights`` [T, topk] are 0 for
    fillers, and ``zero_weight`` [T, 1] is what the row's zero experts weigh together.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    zero_weight: torch.Tensor


@dataclass(frozen=True, slots=True)
class Candidates:
    """For each row, twice as many experts as it has choices: whatever it chose, enough are free.

    ``ids`` [T, 2 topk] int32; ``keys`` are larger from place to place, and end in the id.
    """

    ids: torch.Tensor
    keys: torch.Tensor


def candidates(rows: int, topk: int, experts: int) -> Candidates:
    """Those of ``rows`` rows; where they start moves on from row to row, over all experts.

    There must be at least 2 topk ``experts``.
    """
    places = torch.arange(2 * topk, dtype=torch.int32)
    starts = topk * torch.arange(rows, dtype=torch.int32)
    ids = (starts[:, None] + places) % experts
    return Candidates(ids, places * MOST_EXPERTS + ids)


def choices(
    ids: torch.Tensor,
    weights: torch.Tensor,
    experts: int,
    free: Candidates,
    dtype: torch.dtype,
) -> Choices:
    """``ids`` and ``weights`` [T, topk] with ids from ``experts`` on replaced.

    A row's fillers are ``free`` candidates, the last ones that it did not choose.  Their copies
    weigh nothing; ``zero_weight`` is of ``dtype``.
    """
    taken = (ids[:, :, None] == free.ids[:, None]).any(1)
    fillers = free.keys.masked_fill(taken, -1).topk(ids.shape[1]).values % MOST_EXPERTS
    is_zero = ids >= experts
    kept = weights.masked_fill(is_zero, 0.0)
    zero_weight = (weights - kept).sum(-1, keepdim=True, dtype=dtype)
    return Choices(torch.where(is_zero, fillers.to(ids.dtype), ids), kept, zero_weight)
