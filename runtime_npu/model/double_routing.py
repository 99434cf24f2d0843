"""The MoE of prefill: rows routed to their experts' ranks, and there to the experts."""

from __future__ import annotations

import torch

from runtime_npu.model.chunks import chunks
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from runtime_npu.model.pieces import Pieces


class DoubleRouting:
    """Routes all rows, then sends them chunk by chunk: at most ``chunk_tokens`` rows at once.

    All ranks of the experts' group must have equally many rows, so that their chunks meet.
    Zero experts need no copy: they are served where the row is.
    """

    def __init__(self, moe: Moe, chunk_tokens: int | None) -> None:
        self._moe = moe
        self._chunk_tokens = chunk_tokens

    def pieces(self, issue: Issuer, x: torch.Tensor) -> Pieces[torch.Tensor]:
        """Rows [T, hidden] to rows [T, hidden], cut behind its exchanges."""
        weights, ids = self._moe.route(issue, x)
        cut = chunks(len(x), self._chunk_tokens)
        sizes = [size for _, size in cut]
        parts = zip(*(torch.split(t, sizes) for t in (x, ids, weights)), strict=True)
        outputs = []
        for (label, _), part in zip(cut, parts, strict=True):
            outputs.append((yield from self._chunk(issue, f"moe{label}", *part)))
        return torch.cat(outputs)

    def _chunk(
        self,
        issue: Issuer,
        block: str,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
    ) -> Pieces[torch.Tensor]:
        backend, moe, group = issue.backend, self._moe, self._moe.group
        prepare = backend.init_routing_quantised if moe.is_int8 else backend.init_routing
        routed = issue(f"{block}.init_routing", prepare, x, ids, moe.experts)
        counts = routed.counts.view(group.size, -1)
        name = f"{block}.count_all_to_all"
        arriving = yield from issue.exchange(name, backend.all_to_all, counts, group)
        sent, received = issue.host_read(
            f"{block}.read_counts", backend.read_counts, counts, arriving
        )
        name, move = f"{block}.token_all_to_all", backend.exchange_rows
        rows = yield from issue.exchange(name, move, routed.rows, sent, received, group)
        name, scale = f"{block}.re_routing", None
        if moe.is_int8:
            here, scale = issue(name, backend.re_routing_quantised, rows, arriving)
        else:
            here = issue(name, backend.re_routing, rows, arriving)
        made = moe.compute(issue, block, here.rows, scale, here.counts)
        made = issue(f"{block}.restore_order", backend.restore_order, made, here.order)
        name = f"{block}.back_all_to_all"
        back = yield from issue.exchange(name, move, made, received, sent, group)
        return issue(
            f"{block}.finalize_routing",
            backend.finalize_routing,
            back,
            routed.source,
            x,
            ids,
            weights,
            experts=moe.experts,
        )
