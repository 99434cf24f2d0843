"""The reference backend's direct transport: counts go before the copies that they announce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import override

from runtime_npu.backends.direct import Arrived, Away
from runtime_npu.backends.fillers import filled
from runtime_npu.backends.prefill import Rerouted, Routed
from runtime_npu.backends.reference_prefill import ReferencePrefill
from runtime_npu.parallel.link import Link
from runtime_npu.quantise import SCALE_BYTES


class ReferenceDirect(ReferencePrefill):
    """Sends between any two dies of the roles."""

    @override
    def send_to_experts(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, links: Sequence[Link]
    ) -> Away:
        return self._sent(self.init_routing(x, filled(ids, experts), experts), links)

    @override
    def send_quantised_to_experts(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, links: Sequence[Link]
    ) -> Away:
        return self._sent(self.init_routing_quantised(x, filled(ids, experts), experts), links)

    def _sent(self, routed: Routed, links: Sequence[Link]) -> Away:
        counts = routed.counts.view(len(links), -1)
        sent = tuple(counts.sum(1).tolist())
        for link, own in zip(links, counts, strict=True):
            link.send(own)
        self._send_parts(routed.rows, sent, links)
        return Away(routed.source, sent)

    @override
    def wait_for_copies(
        self, experts: int, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> Arrived:
        width = hidden + SCALE_BYTES if dtype == torch.int8 else hidden
        counts, rows = [], []
        for link in links:
            counts.append(link.receive((experts,), torch.int64))
            rows.append(self._part(int(counts[-1].sum()), width, dtype, link))
        return Arrived(torch.cat(rows), torch.stack(counts))

    @override
    def receive_copies(self, arrived: Arrived) -> Rerouted:
        return self.re_routing(arrived.rows, arrived.counts)

    @override
    def join_copies(self, parts: Sequence[Rerouted]) -> Rerouted:
        rows = torch.cat([part.rows for part in parts])
        return self.re_routing(rows, torch.stack([part.counts for part in parts]))

    @override
    def join_quantised_copies(self, parts: Sequence[Rerouted]) -> tuple[Rerouted, torch.Tensor]:
        rows = torch.cat([part.rows for part in parts])
        return self.re_routing_quantised(rows, torch.stack([part.counts for part in parts]))

    @override
    def part_copies(
        self, rows: torch.Tensor, joined: Rerouted, parts: Sequence[Rerouted]
    ) -> tuple[torch.Tensor, ...]:
        there = self.restore_order(rows, joined.order)
        return torch.split(there, [len(part.rows) for part in parts])

    @override
    def send_back(
        self, rows: torch.Tensor, received: Rerouted, arrived: Arrived, links: Sequence[Link]
    ) -> None:
        there = self.restore_order(rows, received.order)
        self._send_parts(there, arrived.counts.sum(1).tolist(), links)

    @override
    def wait_for_experts(
        self, away: Away, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> torch.Tensor:
        parts = [
            self._part(count, hidden, dtype, link)
            for count, link in zip(away.sent, links, strict=True)
        ]
        return torch.cat(parts)

    @override
    def receive_from_experts(
        self,
        back: torch.Tensor,
        away: Away,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        *,
        experts: int,
    ) -> torch.Tensor:
        is_real = ids.flatten()[away.source] < experts
        return self.finalize_routing(
            back[is_real], away.source[is_real], x, ids, weights, experts=experts
        )

    def _send_parts(self, rows: torch.Tensor, sizes: Sequence[int], links: Sequence[Link]) -> None:
        for link, part in zip(links, torch.split(rows, list(sizes)), strict=True):
            if len(part):
                link.send(part)

    def _part(self, count: int, width: int, dtype: torch.dtype, link: Link) -> torch.Tensor:
        if count == 0:
            return torch.empty(0, width, dtype=dtype)
        return link.receive((count, width), dtype)
