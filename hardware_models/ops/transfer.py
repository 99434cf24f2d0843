"""SDMA work that takes no cores: weight prefetch, and Send/Recv between roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hardware_models.demand import Cores, Demand, OpSpec, WeightRead
from hardware_models.hardware import Hardware


@dataclass(frozen=True, slots=True)
class PrefetchWeight(OpSpec):
    """npu_prefetch: ``bytes`` of ``weight`` from HBM to L2 at the SDMA rate.

    ``requested_bytes`` is what the schedule asked for; above the weight's size it is clipped.
    Source: the rate ``sdma_gbps`` from steps of LongCat-Flash, whose schedule prefetches.
    """

    kind: ClassVar[str] = "prefetch"
    weight: str
    bytes: int
    requested_bytes: int

    def cores(self, hardware: Hardware) -> Cores:
        """None."""
        return Cores(0, 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """HBM and SDMA traffic that fills L2."""
        size = float(self.bytes)
        return Demand(hbm_bytes=size, sdma_bytes=size, fills=WeightRead(self.weight, size))


@dataclass(frozen=True, slots=True)
class Send(OpSpec):
    """Send ``bytes`` to a paired die over SDMA: API latency floor, then SDMA and link rate."""

    kind: ClassVar[str] = "send"
    bytes: int

    def cores(self, hardware: Hardware) -> Cores:
        """None: SDMA uses no vector cores."""
        return Cores(0, 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Floor ``send_latency_us`` (10 to 16 us measured through the API), then the bytes."""
        size = float(self.bytes)
        return Demand(head_us=hardware["send_latency_us"], sdma_bytes=size, link_bytes=size)


@dataclass(frozen=True, slots=True)
class Receive(OpSpec):
    """The receiving side: waits for the sender (a dependency), then a notify.

    Source: latency of 512 bytes between dies (``receive_notify_us``).
    """

    kind: ClassVar[str] = "receive"
    bytes: int

    def cores(self, hardware: Hardware) -> Cores:
        """None."""
        return Cores(0, 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Only the notify: the sender's op moves the bytes."""
        return Demand(head_us=hardware["receive_notify_us"])
