"""How an FFN die serves one pass: receive from attention dies, compute, send back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from typing_extensions import override

from runtime_npu.model.chunks import split_rows
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from runtime_npu.parallel.link import Link
from runtime_npu.record import Event

Leave = Callable[[], None]
"""Issues what sends a pass's rows back."""


class Service(ABC):
    """Serves attention dies.  Rows are [.., ``hidden``]; what goes back is of ``dtype``."""

    def __init__(self, links: Sequence[Link], hidden: int, dtype: torch.dtype) -> None:
        self._links, self._hidden, self._dtype = links, hidden, dtype

    @abstractmethod
    def serve(self, issue: Issuer, moe: Moe, height: int, label: str) -> Leave:
        """Receive and compute one pass, or its chunk ``label``.

        It has ``height`` rows of each attention die.
        """


class PairService(Service):
    """Rows of attention dies that this die alone serves, side by side: it routes them, too."""

    @override
    def serve(self, issue: Issuer, moe: Moe, height: int, label: str) -> Leave:
        backend, arrived = issue.backend, self._arrived(issue, height, label)
        with issue.stages():
            for _, event in arrived:
                backend.wait(event)
            # One kernel that no step graph has, where there are several; none where there is one.
            u = backend.join_rows([rows for rows, _ in arrived])
            outputs = moe(issue, u, f"moe{label}")
            computed = backend.signal()

        def leave() -> None:
            for peer, rows in enumerate(split_rows(outputs, [height] * len(arrived))):
                with issue.link(f"link{self._suffix(peer)}", peer):
                    backend.wait(computed)
                    name = f"afd{label}.send{self._suffix(peer)}"
                    issue(name, backend.send, rows, self._links[peer])
                    self._prefetch_behind("afd.send", issue, peer, backend.signal())

        return leave

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

    def _suffix(self, peer: int) -> str:
        """Transfers that run side by side have each a name of its own."""
        return "" if len(self._links) == 1 else f".{peer}"

    def _prefetch_behind(self, op: str, issue: Issuer, peer: int, event: Event) -> None:
        """What waits for all of the side-by-side transfers ``op`` hangs on the last of them."""
        if 1 < len(self._links) == peer + 1:
            issue.prefetch(op, event)


class DirectService(Service):
    """Copies that all attention dies routed to this die's experts; it computes these alone."""

    @override
    def serve(self, issue: Issuer, moe: Moe, height: int, label: str) -> Leave:
        backend, links = issue.backend, self._links
        experts, dtype = len(moe.w13), torch.int8 if moe.is_int8 else self._dtype
        with issue.link():
            name, wait = f"afd{label}.wait", backend.wait_for_copies
            arrived = issue(name, wait, experts, self._hidden, dtype, links)
            received = issue(f"afd{label}.recv", backend.receive_copies, arrived)
            event = backend.signal()
        with issue.stages():
            backend.wait(event)
            copies = received.rows, received.scale, received.counts
            made = moe.compute(issue, f"moe{label}", *copies)
            computed = backend.signal()

        def leave() -> None:
            with issue.link():
                backend.wait(computed)
                issue(f"afd{label}.send", backend.send_back, made, received, links)

        return leave
