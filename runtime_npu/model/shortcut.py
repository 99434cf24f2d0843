"""The MoE on a layer's shortcut: on this die, or on an FFN die that u is sent to (AFD)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from typing_extensions import override

from runtime_npu.model.chunks import chunks, split_rows
from runtime_npu.model.double_routing import DoubleRouting
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from runtime_npu.model.pieces import Pieces
from runtime_npu.parallel.link import Link
from runtime_npu.record import Event
from twin.workload import Phase


@dataclass(frozen=True, slots=True)
class Ticket:
    """A MoE under way: its output and the event behind it; with AFD its input, away.

    Where that goes in chunks, ``rows`` are the last one, ``label`` its name's, and ``back`` what
    came back for the others.
    """

    rows: torch.Tensor
    done: Event
    label: str = ""
    back: tuple[torch.Tensor, ...] = ()


class LocalExperts:
    """The MoE on this die, on its own stream where the schedule has one."""

    def __init__(self, moe: Moe, chunk_tokens: int | None) -> None:
        self._moe = moe
        self._double_routing = DoubleRouting(moe, chunk_tokens)

    def start(self, issue: Issuer, u: torch.Tensor, phase: Phase) -> Pieces[Ticket]:
        """Issue the MoE: in prefill with double routing, cut behind its exchanges."""
        if phase == "prefill":
            rows = yield from self._double_routing.pieces(issue, u)
            return Ticket(rows, issue.backend.signal())
        u_ready = issue.backend.signal()
        with issue.moe_branch():
            issue.backend.wait(u_ready)
            return Ticket(self._moe(issue, u), issue.backend.signal())

    def finish(self, issue: Issuer, ticket: Ticket) -> torch.Tensor:
        """Hold the current stream until the MoE's output is there."""
        issue.backend.wait(ticket.done)
        return ticket.rows


class AwayExperts(ABC):
    """The MoE on other dies, which rows are sent to and come back from.

    In prefill at most ``chunk_tokens`` rows are sent at once, and each chunk is back before the
    next one leaves: a die that still sends could not receive.
    """

    def __init__(self, chunk_tokens: int | None) -> None:
        self._chunk_tokens = chunk_tokens

    def start(self, issue: Issuer, u: torch.Tensor, phase: Phase) -> Pieces[Ticket]:
        """Send u; the main stream goes on."""
        yield from ()
        parts = chunks(len(u), self._chunk_tokens if phase == "prefill" else None)
        rows = split_rows(u, [size for _, size in parts])
        ticket = self._send(issue, parts[0][0], rows[0])
        for (label, _), chunk in zip(parts[1:], rows[1:], strict=True):
            came, _ = self._receive(issue, ticket)
            ticket = replace(self._send(issue, label, chunk), back=(*ticket.back, came))
        return ticket

    def finish(self, issue: Issuer, ticket: Ticket) -> torch.Tensor:
        """Receive the MoE's output, and hold the current stream until then."""
        rows, received = self._receive(issue, ticket)
        issue.backend.wait(received)
        return issue.backend.join_rows((*ticket.back, rows))

    @abstractmethod
    def _send(self, issue: Issuer, label: str, rows: torch.Tensor) -> Ticket:
        """Issue what sends ``rows``."""

    @abstractmethod
    def _receive(self, issue: Issuer, ticket: Ticket) -> tuple[torch.Tensor, Event]:
        """Issue what receives the MoE's output of the rows sent last; the event behind it."""


class RemoteExperts(AwayExperts):
    """Those on the FFN die at the other end of ``link``, which routes too."""

    def __init__(self, link: Link, chunk_tokens: int | None) -> None:
        super().__init__(chunk_tokens)
        self._link = link

    @override
    def _send(self, issue: Issuer, label: str, rows: torch.Tensor) -> Ticket:
        ready = issue.backend.signal()
        with issue.link():
            issue.backend.wait(ready)
            issue(f"afd{label}.send", issue.backend.send, rows, self._link)
            return Ticket(rows, issue.backend.signal(), label)

    @override
    def _receive(self, issue: Issuer, ticket: Ticket) -> tuple[torch.Tensor, Event]:
        backend, sent = issue.backend, ticket.rows
        with issue.link():
            op = f"afd{ticket.label}.recv"
            rows = issue(op, backend.receive, sent.shape, sent.dtype, self._link)
            return rows, backend.signal()
