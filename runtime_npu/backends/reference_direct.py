"""The reference backend's direct transport: counts go before the copies that they announce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from runtime_npu.backends.direct import Arrived, Away, Received
from runtime_npu.backends.fillers import Choices, candidates, choices
from runtime_npu.backends.reference_prefill import ReferencePrefill, weighted_sum
from runtime_npu.parallel.link import Link
from runtime_npu.quantise import SCALE_BYTES


@dataclass(frozen=True, slots=True)
class AwayByExpert(Away):
    """``source`` [T x topk] are the copies' places among the flattened (row, choice) pairs.

    They are by expert: ``sent`` of them to each FFN die.
    """

    source: torch.Tensor
    sent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArrivedByDie(Arrived):
    """``rows`` [N, width] die by die, by expert within each: ``counts`` [dies, local experts]."""

    rows: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class CameBack(Arrived):
    """``rows`` [T x topk, hidden] in the order in which they left."""

    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class ReceivedInOrder(Received):
    """``order`` [N] says which of the copies that ``arrived`` each row is."""

    order: torch.Tensor
    arrived: ArrivedByDie


class ReferenceDirect(ReferencePrefill):
    """Sends between any two dies of the roles."""

    @override
    def fill_choices(self, ids: torch.Tensor, weights: torch.Tensor, experts: int) -> Choices:
        rows, topk = ids.shape
        free = candidates(rows, topk, experts)
        return choices(ids, weights, experts, free, torch.float32)

    @override
    def send_to_experts(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        experts: int,
        links: Sequence[Link],
        *,
        quantise: bool,
    ) -> Away:
        init_routing = self.init_routing_quantised if quantise else self.init_routing
        routed = init_routing(x, ids, experts)
        counts = routed.counts.view(len(links), -1)
        sent = tuple(counts.sum(1).tolist())
        for link, own in zip(links, counts, strict=True):
            link.send(own)
        self._send_parts(routed.rows, sent, links)
        return AwayByExpert(routed.source, sent)

    @override
    def wait_for_copies(
        self, experts: int, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> Arrived:
        width = hidden + SCALE_BYTES if dtype == torch.int8 else hidden
        counts, rows = [], []
        for link in links:
            counts.append(link.receive((experts,), torch.int64))
            rows.append(self._part(int(counts[-1].sum()), width, dtype, link))
        return ArrivedByDie(torch.cat(rows), torch.stack(counts))

    @override
    def receive_copies(self, arrived: Arrived) -> Received:
        assert isinstance(arrived, ArrivedByDie)
        if arrived.rows.dtype == torch.int8:
            found, scale = self.re_routing_quantised(arrived.rows, arrived.counts)
            return ReceivedInOrder(found.rows, found.counts, scale, found.order, arrived)
        found = self.re_routing(arrived.rows, arrived.counts)
        return ReceivedInOrder(found.rows, found.counts, None, found.order, arrived)

    @override
    def send_back(self, rows: torch.Tensor, received: Received, links: Sequence[Link]) -> None:
        assert isinstance(received, ReceivedInOrder)
        there = self.restore_order(rows, received.order)
        self._send_parts(there, received.arrived.counts.sum(1).tolist(), links)

    @override
    def wait_for_experts(
        self, away: Away, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> Arrived:
        assert isinstance(away, AwayByExpert)
        parts = [
            self._part(count, hidden, dtype, link)
            for count, link in zip(away.sent, links, strict=True)
        ]
        return CameBack(torch.cat(parts))

    @override
    def receive_from_experts(
        self, back: Arrived, away: Away, x: torch.Tensor, choices: Choices
    ) -> torch.Tensor:
        assert isinstance(back, CameBack)
        assert isinstance(away, AwayByExpert)
        return weighted_sum(back.rows, away.source, x, choices.weights, choices.zero_weight)

    def _send_parts(self, rows: torch.Tensor, sizes: Sequence[int], links: Sequence[Link]) -> None:
        for link, part in zip(links, torch.split(rows, list(sizes)), strict=True):
            if len(part):
                link.send(part)

    def _part(self, count: int, width: int, dtype: torch.dtype, link: Link) -> torch.Tensor:
        if count == 0:
            return torch.empty(0, width, dtype=dtype)
        return link.receive((count, width), dtype)
