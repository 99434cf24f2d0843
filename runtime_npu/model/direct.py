"""The MoE under AFD's direct transport: routed here, copies sent straight to the experts' dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from runtime_npu.backends.direct import Away
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from runtime_npu.model.shortcut import AwayExperts, Ticket
from runtime_npu.parallel.link import Link
from runtime_npu.record import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectTicket(Ticket):
    """A MoE under way whose ``rows`` were routed here: ``weights`` and ``ids`` [T, topk]."""

    weights: torch.Tensor
    ids: torch.Tensor
    away: Away


class DirectExperts(AwayExperts):
    """The MoE whose router is here and whose experts are on the dies that ``links`` lead to."""

    def __init__(self, moe: Moe, links: Sequence[Link], chunk_tokens: int | None) -> None:
        super().__init__(chunk_tokens)
        self._moe = moe
        self._links = links

    @override
    def _send(self, issue: Issuer, label: str, rows: torch.Tensor) -> DirectTicket:
        moe, backend = self._moe, issue.backend
        weights, ids = moe.route(issue, rows, f"moe{label}")
        routed = backend.signal()
        send = backend.send_quantised_to_experts if moe.is_int8 else backend.send_to_experts
        with issue.link():
            backend.wait(routed)
            away = issue(f"afd{label}.send", send, rows, ids, moe.experts, self._links)
            return DirectTicket(
                rows, backend.signal(), label=label, weights=weights, ids=ids, away=away
            )

    @override
    def _receive(self, issue: Issuer, ticket: Ticket) -> tuple[torch.Tensor, Event]:
        assert isinstance(ticket, DirectTicket)
        backend, x, away = issue.backend, ticket.rows, ticket.away
        with issue.link():
            name, wait = f"afd{ticket.label}.wait", backend.wait_for_experts
            back = issue(name, wait, away, x.shape[1], x.dtype, self._links)
            rows = issue(
                f"afd{ticket.label}.recv",
                backend.receive_from_experts,
                back,
                away,
                x,
                ticket.ids,
                ticket.weights,
                experts=self._moe.experts,
            )
            return rows, backend.signal()
