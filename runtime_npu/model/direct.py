"""The MoE under AFD's direct transport: routed here, copies sent straight to the experts' dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from runtime_npu.backends.direct import Away
from runtime_npu.backends.fillers import Choices
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from runtime_npu.model.shortcut import AwayExperts, Ticket
from runtime_npu.parallel.link import Link
from runtime_npu.record import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectTicket(Ticket):
    """A MoE under way whose ``rows`` were routed here."""

    choices: Choices
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
        fill = backend.fill_choices
        choices = issue(f"moe{label}.fill", fill, ids, weights, moe.experts)
        chosen = backend.signal()
        with issue.link():
            backend.wait(chosen)
            away = issue(
                f"afd{label}.send",
                backend.send_to_experts,
                rows,
                choices.ids,
                moe.experts,
                self._links,
                quantise=moe.is_int8,
            )
            return DirectTicket(rows, backend.signal(), label=label, choices=choices, away=away)

    @override
    def _receive(self, issue: Issuer, ticket: Ticket) -> tuple[torch.Tensor, Event]:
        assert isinstance(ticket, DirectTicket)
        backend, x, away = issue.backend, ticket.rows, ticket.away
        with issue.link():
            name, wait = f"afd{ticket.label}.wait", backend.wait_for_experts
            back = issue(name, wait, away, x.shape[1], x.dtype, self._links)
            name, receive = f"afd{ticket.label}.recv", backend.receive_from_experts
            rows = issue(name, receive, back, away, x, ticket.choices)
            return rows, backend.signal()
