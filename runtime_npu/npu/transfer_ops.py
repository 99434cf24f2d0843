"""Send and Recv of AFD: HCCL moves the rows over SDMA, without cores."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from runtime_npu.npu.contract import Contract
from runtime_npu.npu.vector_ops import FLOATS


def send(x: torch.Tensor, peer: int, tag: int) -> None:
    """Send ``x`` [T, H] to rank ``peer``; both ends call the transfer ``tag``."""
    Contract("send").tensor("x", x, (None, None), *FLOATS)
    ranks, group_tag = _everyone()
    torch.ops.npu_define._send(x, peer, ranks, group_tag, tag, None, list(x.shape))


def receive(shape: Sequence[int], dtype: torch.dtype, peer: int, tag: int) -> torch.Tensor:
    """Rows of ``shape`` from rank ``peer``, sent under ``tag``."""
    room = torch.empty(*shape, dtype=dtype, device="npu")
    Contract("receive").tensor("room", room, (None, None), *FLOATS)
    ranks, group_tag = _everyone()
    arrived: torch.Tensor = torch.ops.npu_define._recv(
        room, peer, ranks, group_tag, tag, None, list(shape)
    )
    return arrived


def send_now(x: torch.Tensor, peer: int) -> None:
    """:func:`send` without a graph: in the order of the current stream."""
    Contract("send").tensor("x", x, (None, None), *FLOATS)
    dist.send(x, peer)


def receive_now(shape: Sequence[int], dtype: torch.dtype, peer: int) -> torch.Tensor:
    """:func:`receive` without a graph."""
    room = torch.empty(*shape, dtype=dtype, device="npu")
    Contract("receive").tensor("room", room, (None, None), *FLOATS)
    dist.recv(room, peer)
    return room


def _everyone() -> tuple[list[int], str]:
    """All ranks, in whose group a pair talks, and torch.distributed's tag of that group."""
    import_module("torchair")  # which defines the ops
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    world = c10d._get_default_group()
    return list(range(dist.get_world_size())), str(c10d._get_group_tag(world))
