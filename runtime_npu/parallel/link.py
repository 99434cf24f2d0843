"""Point-to-point transfers of AFD: Send and Recv between an attention and an FFN rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from runtime_npu.parallel.communicator import exchanging


class Link:
    """The link to one rank: tensors arrive in the order in which they were sent.

    Sending does not wait for the receiver, so that both sides may send first: up to ``depth``
    tensors may be on their way to it.  ``handle`` is torch.distributed's group of the two.
    """

    def __init__(self, peer: int, depth: int, handle: Any) -> None:
        self.peer = peer
        self.handle = handle
        self._depth = depth
        self._leaving: deque[tuple[Any, torch.Tensor]] = deque()

    def send(self, x: torch.Tensor) -> None:
        """Start sending ``x``."""
        x = x.contiguous()
        with exchanging(f"send to rank {self.peer}"):
            if len(self._leaving) == self._depth:
                self._leaving.popleft()[0].wait()
            # The tensor must live until it has left.
            self._leaving.append((dist.isend(x, self.peer, self.handle), x))

    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The next tensor from the peer, which must have this shape and type."""
        arrived = torch.empty(*shape, dtype=dtype)
        with exchanging(f"receive from rank {self.peer}"):
            dist.recv(arrived, self.peer, self.handle)
        return arrived
