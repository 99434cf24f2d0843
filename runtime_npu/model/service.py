"""How an FFN die serves one pass: receive from attention dies, compute, send back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from typing_extensions import override

from runtime_npu.backends.direct import Arrived
from runtime_npu.backends.prefill import Rerouted
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from runtime_npu.parallel.link import Link
from runtime_npu.record import Event


class Service(ABC):
    """Serves attention dies in ``parts``, each with transfers of its own, side by side.

    Rows are [.., ``hidden``]; what goes back is of ``dtype``.
    """

    def __init__(self, parts: int, hidden: int, dtype: torch.dtype) -> None:
        self._parts, self._hidden, self._dtype = parts, hidden, dtype

    @abstractmethod
    def serve(self, issue: Issuer, moe: Moe, height: int, label: str) -> None:
        """One pass, or its chunk ``label``: ``height`` rows of each attention die."""

    def _suffix(self, part: int) -> str:
        """Transfers that run side by side have each a name of its own."""
        return "" if self._parts == 1 else f".{part}"

    def _prefetch_behind(self, op: str, issue: Issuer, part: int, event: Event) -> None:
        """What waits for all of the side-by-side transfers ``op`` hangs on the last of them."""
        if 1 < self._parts == part + 1:
            issue.prefetch(op, event)


class PairService(Service):
    """Rows of attention dies that this die alone serves: it routes them, too."""

    def __init__(self, links: Sequence[Link], hidden: int, dtype: torch.dtype) -> None:
        super().__init__(len(links), hidden, dtype)
        self._links = links

    @override
    def serve(self, issue: Issuer, moe: Moe, height: int, label: str) -> None:
        backend, arrived = issue.backend, self._arrived(issue, height, label)
        u = torch.cat([rows for rows, _ in arrived])
        with issue.stages():
            for _, event in arrived:
                backend.wait(event)
            outputs = moe(issue, u, f"moe{label}")
            computed = backend.signal()
        for peer, rows in enumerate(torch.split(outputs, height)):
            with issue.link(f"link{self._suffix(peer)}", peer):
                backend.wait(computed)
                name = f"afd{label}.send{self._suffix(peer)}"
                issue(name, backend.send, rows, self._links[peer])
                self._prefetch_behind("afd.send", issue, peer, backend.signal())

    def _arrived(self, issue: Issuer, height: int, label: str) -> list[tuple[torch.Tensor, Event]]:
        """The rows [height, hidden] of each attention die, and the event behind their arrival."""
        backend, shape = issue.backend, (height, self._hidden)
        arrived = []
        for peer, link in enumerate(self._links):
            with issue.link(f"link{self._suffix(peer)}", peer):
                name = f"afd{label}.recv{self._suffix(peer)}"
                rows = issue(name, backend.receive, shape, self._dtype, link)
                arrived.append((rows, backend.signal()))
                self._prefetch_behind("afd.recv", issue, peer, arrived[-1][1])
        return arrived


class DirectService(Service):
    """Copies that the attention dies routed to this die's experts; it computes these alone.

    Each of the ``parts`` is a stretch of consecutive attention dies.
    """

    def __init__(self, links: Sequence[Link], parts: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__(parts, hidden, dtype)
        bounds = [len(links) * part // parts for part in range(parts + 1)]
        self._links = [links[bounds[part] : bounds[part + 1]] for part in range(parts)]

    @override
    def serve(self, issue: Issuer, moe: Moe, height: int, label: str) -> None:
        backend = issue.backend
        arrived = [self._wait(issue, moe, label, part) for part in range(self._parts)]
        received = [self._receive(issue, label, part, own) for part, own in enumerate(arrived)]
        # Receiving puts the copies of all parts where they lie by expert: this is no further op.
        copies = [own for own, _ in received]
        scale = None
        if moe.is_int8:
            joined, scale = backend.join_quantised_copies(copies)
        else:
            joined = backend.join_copies(copies)
        with issue.stages():
            for _, event in received:
                backend.wait(event)
            made = moe.compute(issue, f"moe{label}", joined.rows, scale, joined.counts)
            computed = backend.signal()
        for part, own in enumerate(backend.part_copies(made, joined, copies)):
            with issue.link(f"link{self._suffix(part)}", part):
                backend.wait(computed)
                name, send = f"afd{label}.send{self._suffix(part)}", backend.send_back
                issue(name, send, own, copies[part], arrived[part], self._links[part])
                self._prefetch_behind("afd.send", issue, part, backend.signal())

    def _wait(self, issue: Issuer, moe: Moe, label: str, part: int) -> Arrived:
        backend, links = issue.backend, self._links[part]
        experts, dtype = len(moe.w13), torch.int8 if moe.is_int8 else self._dtype
        with issue.link(f"link{self._suffix(part)}", part):
            name = f"afd{label}.wait{self._suffix(part)}"
            arrived = issue(name, backend.wait_for_copies, experts, self._hidden, dtype, links)
            self._prefetch_behind("afd.wait", issue, part, backend.signal())
            return arrived

    def _receive(
        self, issue: Issuer, label: str, part: int, arrived: Arrived
    ) -> tuple[Rerouted, Event]:
        backend = issue.backend
        with issue.link(f"link{self._suffix(part)}", part):
            name = f"afd{label}.recv{self._suffix(part)}"
            copies = issue(name, backend.receive_copies, arrived)
            event = backend.signal()
            self._prefetch_behind("afd.recv", issue, part, event)
            return copies, event
