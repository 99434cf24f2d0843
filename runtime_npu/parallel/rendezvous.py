"""Where ranks meet: a store of the command that started them, or torchrun's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hardware_models.errors import InputError
from runtime_npu.parallel.communicator import exchanging
from runtime_npu.torchrun import whole_number

HOST = "127.0.0.1"
MEETING_S = 120.0
"""How long a rank waits for the others to start."""
EXCHANGE_S = 600.0
"""How long an exchange may take before its ranks give up: a rank that stands still for so
long is taken for lost."""
NPU_EXCHANGE_S = 3600.0
"""The same on NPUs, where a rank may still compile, and above HCCL's own limit (1836 s)."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Ranks meet at ``port`` of this machine; ``None``: where torchrun's environment says.

    ``npu`` is the NPU of this machine that the rank runs on; ``None``: a CPU.
    """

    rank: int
    ranks: int
    port: int | None
    npu: int | None = None


def torchrun_meeting(*, on_npus: bool = False) -> Meeting | None:
    """The meeting that torchrun's environment describes; ``None`` outside torchrun.

    Raises:
        InputError: a variable of it is no number, or LOCAL_RANK is missing ``on_npus``.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    rank, ranks, npu = (whole_number(os.environ, name) for name in names)
    if rank is None or ranks is None:
        return None
    if on_npus and npu is None:
        raise InputError("LOCAL_RANK", "unset", "a whole number, as torchrun sets it")
    return Meeting(rank, ranks, None, npu if on_npus else None)


def host_store() -> TCPStore:
    """A store for the ranks of this machine, at a free port; it lives as long as the object."""
    return TCPStore(
        HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=MEETING_S)
    )


@contextmanager
def met(meeting: Meeting) -> Iterator[None]:
    """torch.distributed is initialised inside.

    Raises:
        PeerLostError: not all ranks came in time.
    """
    wait = timedelta(seconds=MEETING_S)
    backend = "gloo" if meeting.npu is None else _on_npu(meeting.npu)
    most = timedelta(seconds=EXCHANGE_S if meeting.npu is None else NPU_EXCHANGE_S)
    with exchanging(f"meeting of {meeting.ranks} ranks"):
        if meeting.port is None:
            dist.init_process_group(backend, timeout=most)
        else:
            store = TCPStore(HOST, meeting.port, is_master=False, timeout=wait)
            dist.init_process_group(
                backend,
                store=store,
                rank=meeting.rank,
                world_size=meeting.ranks,
                timeout=most,
            )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _on_npu(device: int) -> str:
    """Take NPU ``device``; the backends: what lies on it goes over HCCL, the rest over Gloo."""
    torch_npu: Any = import_module("torch_npu")
    torch_npu.npu.set_device(device)
    return "cpu:gloo,npu:hccl"
