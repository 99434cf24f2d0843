"""The MoE on a layer's shortcut: on this die, or on an FFN die that u is sent to (AFD)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime_npu.model.double_routing import DoubleRouting
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from runtime_npu.model.pieces import Pieces
from runtime_npu.parallel.link import Link
from runtime_npu.record import Event
from twin.workload import Phase


@dataclass(frozen=True, slots=True)
class Ticket:
    """A MoE under way: its output and the event behind it; with AFD its input, away."""

    rows: torch.Tensor
    done: Event


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


class RemoteExperts:
    """The MoE on the FFN die at the other end of ``link``."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def start(self, issue: Issuer, u: torch.Tensor, phase: Phase) -> Pieces[Ticket]:
        """Send u; the main stream goes on."""
        del phase
        yield from ()
        backend = issue.backend
        u_ready = backend.signal()
        with issue.link():
            backend.wait(u_ready)
            issue("afd.send", backend.send, u, self._link)
            return Ticket(u, backend.signal())

    def finish(self, issue: Issuer, ticket: Ticket) -> torch.Tensor:
        """Receive the MoE's output, and hold the current stream until then."""
        backend, sent = issue.backend, ticket.rows
        with issue.link():
            rows = issue("afd.recv", backend.receive, sent.shape, sent.dtype, self._link)
            received = backend.signal()
        backend.wait(received)
        return rows
