"""Send and Recv of AFD: HCCL moves the rows over SDMA, without cores."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from runtime_npu.npu.contract import Contract
from runtime_npu.npu.vector_ops import FLOATS
from runtime_npu.parallel.link import Link


def send(x: torch.Tensor, link: Link, tag: int) -> None:
    """Send ``x`` [T, H] over ``link``; both ends call the transfer ``tag``."""
    Contract("send").tensor("x", x, (None, None), *FLOATS)
    ranks, group_tag = _pair(link)
    torch.ops.npu_define._send(x, link.peer, ranks, group_tag, tag, None, list(x.shape))


def receive(shape: Sequence[int], dtype: torch.dtype, link: Link, tag: int) -> torch.Tensor:
    """Rows of ``shape`` that come over ``link``, sent under ``tag``."""
    room = torch.empty(*shape, dtype=dtype, device="npu")
    Contract("receive").tensor("room", room, (None, None), *FLOATS)
    ranks, group_tag = _pair(link)
    arrived: torch.Tensor = torch.ops.npu_define._recv(
        room, link.peer, ranks, group_tag, tag, None, list(shape)
    )
    return arrived


def _pair(link: Link) -> tuple[list[int], str]:
    """The two ranks, and torch.distributed's tag of their group."""
    import_module("torchair")  # which defines the ops
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    return dist.get_process_group_ranks(link.handle), str(c10d._get_group_tag(link.handle))
