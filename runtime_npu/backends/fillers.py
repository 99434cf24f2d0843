"""Real ids in place of zero experts' ones, for transfers that know no others."""

from __future__ import annotations

import torch


def filled(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """``ids`` [T, topk] with those from ``experts`` on replaced: all real, no two of a row alike.

    A row's fillers are experts that it did not choose; where the search for them starts moves on
    from row to row, so that they spread over all dies.  Their copies weigh nothing: who sums up
    must leave them out.  There must be at least topk experts.
    """
    rows, topk = ids.shape
    is_zero = ids >= experts
    starts = topk * torch.arange(rows, device=ids.device)
    candidates = (starts[:, None] + torch.arange(experts, device=ids.device)) % experts
    chosen = (ids[:, :, None] == candidates[:, None]).any(1)
    free = candidates.gather(1, chosen.to(torch.int8).argsort(dim=1, stable=True)[:, :topk])
    place = (is_zero.cumsum(1) - 1).clamp(min=0)
    return torch.where(is_zero, free.gather(1, place).to(ids.dtype), ids)
