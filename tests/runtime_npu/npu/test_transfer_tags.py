"""Both ends of a pair call each transfer of a pass by the same number."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from hardware_models.hardware import load_hardware
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_issue import Listener
from runtime_npu.backends.npu_order import GeOrder
from runtime_npu.npu.forms import Forms
from runtime_npu.parallel.link import Link

ATTENTION, FFN = 3, 67


def tags(rank: int, peer: int, ways: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that ``rank`` gives its transfers, in order: "s" sends, "r" receives."""
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    order = GeOrder(load_hardware("a3-752t"))
    backend = NpuBackend(Forms(), order, lambda _: "", Listener())
    link = Link(peer, 1, None)
    return [backend._tag(link, sends=way == "s") for way in ways]


def test_the_two_ends_agree_though_their_orders_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two micro-batches of three layers: the attention die's order, and the FFN die's."""
    there, here = "ssrsrsrsrsrr", "rrsrsrsrsrss"
    sent = tags(ATTENTION, FFN, there, monkeypatch)
    received = tags(FFN, ATTENTION, here, monkeypatch)

    def of(numbers: list[int], ways: str, way: str) -> list[int]:
        return [number for number, one in zip(numbers, ways, strict=True) if one == way]

    assert of(sent, there, "s") == of(received, here, "r")
    assert of(sent, there, "r") == of(received, here, "s")
    assert len(set(sent)) == len(sent)
