"""The op interface's part for AFD's direct transport: copies go straight to the experts' dies.

Attention dies choose the experts and send each row once for every choice; a choice that is a
zero expert travels too, under the id of a real one (:mod:`runtime_npu.backends.fillers`), and
weighs nothing.  A die first waits until the copies of all senders are there, then receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hardware_models.errors import InputError
from runtime_npu.backends.prefill import Rerouted
from runtime_npu.parallel.link import Link


@dataclass(frozen=True, slots=True)
class Away:
    """Copies of an attention die's rows on their way through the experts.

    ``source`` [T x topk] are their indices in the flattened (row, choice) pairs, by expert:
    ``sent`` of them to each FFN die.
    """

    source: torch.Tensor
    sent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrived:
    """Copies that came to an FFN die, attention die by attention die, by expert within each.

    ``rows`` are [N, width]; ``counts`` [attention dies, local experts] counts them.
    """

    rows: torch.Tensor
    counts: torch.Tensor


class DirectOps:
    """Ops of the direct transport.  Each raises InputError where a backend leaves it out."""

    def send_to_experts(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, links: Sequence[Link]
    ) -> Away:
        """Start sending the rows of ``x`` [T, hidden] to the dies of their experts.

        ``ids`` [T, topk]; ``links`` lead to the dies, which hold equally many consecutive experts.
        """
        raise _left_out()

    def send_quantised_to_experts(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, links: Sequence[Link]
    ) -> Away:
        """:meth:`send_to_experts` of the rows as int8; a row's fp32 scale is its last bytes."""
        raise _left_out()

    def wait_for_copies(
        self, experts: int, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> Arrived:
        """On an FFN die with so many ``experts``: until the copies of all ``links`` are there.

        They are rows [hidden] of ``dtype``; those of int8 end in their scales.
        """
        raise _left_out()

    def receive_copies(self, arrived: Arrived) -> Rerouted:
        """On an FFN die: what arrived, sorted by expert."""
        raise _left_out()

    def join_copies(self, parts: Sequence[Rerouted]) -> Rerouted:
        """On an FFN die: what it received in ``parts``, by expert among those of all parts."""
        raise _left_out()

    def join_quantised_copies(self, parts: Sequence[Rerouted]) -> tuple[Rerouted, torch.Tensor]:
        """:meth:`join_copies` of rows that end in their scales; the scales [N] apart."""
        raise _left_out()

    def part_copies(
        self, rows: torch.Tensor, joined: Rerouted, parts: Sequence[Rerouted]
    ) -> tuple[torch.Tensor, ...]:
        """``rows`` [N, hidden], which lie as ``joined`` does, as each of ``parts`` does."""
        raise _left_out()

    def send_back(
        self, rows: torch.Tensor, received: Rerouted, arrived: Arrived, links: Sequence[Link]
    ) -> None:
        """Start sending what the experts made of ``received`` to where it came from."""
        raise _left_out()

    def wait_for_experts(
        self, away: Away, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> torch.Tensor:
        """On an attention die: until all copies are back; rows [T x topk, hidden] as they left."""
        raise _left_out()

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
        """Per token, the weighted sum of what its experts gave: [T, hidden].

        Zero experts (ids from ``experts`` on) give their input row of ``x``, not what came back.
        """
        raise _left_out()


def _left_out() -> InputError:
    allowed = "another transport: the backend leaves direct out"
    return InputError("deployment.afd.transport", "direct", allowed)
