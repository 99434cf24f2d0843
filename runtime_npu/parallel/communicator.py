"""Moving tensors among the ranks of a group, over torch.distributed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from hardware_models.errors import TwinError


class PeerLostError(TwinError):
    """An exchange failed: a rank at the other end has ended or does not answer."""


@contextmanager
def exchanging(what: str) -> Iterator[None]:
    """Turn torch.distributed's errors inside into :class:`PeerLostError`."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"{what}: {error}") from None


class Communicator:
    """The ranks of one group; ``index`` is the own place among its ``members``.

    All members must call the same methods in the same order.  A group of one moves nothing.
    """

    def __init__(self, members: Sequence[int], rank: int, handle: Any = None) -> None:
        self.members = tuple(members)
        self.index = self.members.index(rank)
        self._handle = handle

    @property
    def handle(self) -> Any:
        """torch.distributed's group; ``None`` for a group of one."""
        return self._handle

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.members)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [...] of every member, in order: [size, ...]."""
        return self.all_to_all(x.expand(self.size, *x.shape))

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Part i of ``x`` [size, ...] goes to member i; the parts from all: [size, ...]."""
        if self.size == 1:
            return x
        x = x.contiguous()
        arrived = torch.empty_like(x)
        with exchanging(f"all_to_all of ranks {self.members}"):
            dist.all_to_all_single(arrived, x, group=self._handle)
        return arrived

    def exchange(
        self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        """As :meth:`all_to_all`, with ``sent[i]`` rows for member i and ``received[i]`` from it.

        ``rows`` [sum of sent, width] and the result [sum of received, width] are in member
        order.
        """
        if self.size == 1:
            return rows
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        with exchanging(f"exchange of rows among ranks {self.members}"):
            dist.all_to_all_single(
                arrived, rows.contiguous(), list(received), list(sent), group=self._handle
            )
        return arrived
