"""The op interface's part for AFD's direct transport: copies go straight to the experts' dies.

Attention dies choose the experts and send each row once for every choice; a choice that is a
zero expert travels too, under the id of a real one (:mod:`runtime_npu.backends.fillers`), and
weighs nothing.  A die first waits until the copies of all senders are there, then receives.
``links`` lead to all dies of the other role.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime_npu.backends.fillers import Choices
from runtime_npu.parallel.link import Link


class Away:
    """Copies of an attention die's rows on their way through the experts."""


class Arrived:
    """Copies that came to an FFN die, or came back to an attention die."""


@dataclass(frozen=True, slots=True)
class Received:
    """On an FFN die: copies [N, hidden] sorted by expert, ``counts`` [local experts] of them.

    ``scale`` [N] is theirs where they are int8.
    """

    rows: torch.Tensor
    counts: torch.Tensor
    scale: torch.Tensor | None


class DirectOps(ABC):
    """Ops of the direct transport."""

    @abstractmethod
    def fill_choices(self, ids: torch.Tensor, weights: torch.Tensor, experts: int) -> Choices:
        """The router's choices [T, topk] without those from ``experts`` on."""

    @abstractmethod
    def send_to_experts(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        experts: int,
        links: Sequence[Link],
        *,
        quantise: bool,
    ) -> Away:
        """Start sending the rows of ``x`` [T, hidden] to the dies of their experts.

        ``ids`` [T, topk] are below ``experts``; the dies hold equally many consecutive experts.
        ``quantise``: as int8, with a scale for each row.
        """

    @abstractmethod
    def wait_for_copies(
        self, experts: int, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> Arrived:
        """On an FFN die with so many ``experts``: until the copies of all ``links`` are there.

        They are rows [hidden] of ``dtype``; those of int8 come with their scales.
        """

    @abstractmethod
    def receive_copies(self, arrived: Arrived) -> Received:
        """On an FFN die: what arrived, sorted by expert."""

    @abstractmethod
    def send_back(self, rows: torch.Tensor, received: Received, links: Sequence[Link]) -> None:
        """Start sending what the experts made of ``received`` to where it came from."""

    @abstractmethod
    def wait_for_experts(
        self, away: Away, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> Arrived:
        """On an attention die: until all copies are back, rows [hidden] of ``dtype``."""

    @abstractmethod
    def receive_from_experts(
        self, back: Arrived, away: Away, x: torch.Tensor, choices: Choices
    ) -> torch.Tensor:
        """Per row of ``x``, the weighted sum of what its experts gave: [T, hidden].

        Zero experts give their input row.
        """
