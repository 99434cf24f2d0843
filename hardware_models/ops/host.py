"""What the host does in eager mode: launch ops, and wait for values that it must read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops.collective import BulkExchange, Collective, HcclCollective
from hardware_models.ops.transfer import Receive, Send

HCCL_CALLS = (BulkExchange, Collective, HcclCollective, Send, Receive)
"""Ops that HCCL issues, with more work on the host than a kernel's launch."""


@dataclass(frozen=True, slots=True)
class HostLaunch(OpSpec):
    """The host issues one op; ``events`` counts the streams that it first waits for.

    Source: profiled runs in eager mode (``launch_host_*_us``).
    """

    kind: ClassVar[str] = "host_launch"
    is_hccl: bool = False
    events: int = 0

    def us(self, hardware: Hardware) -> float:
        """Host time of the call and of its pairs of event record and wait."""
        call = "launch_host_hccl_us" if self.is_hccl else "launch_host_eager_us"
        return hardware[call] + self.events * hardware["launch_host_event_us"]

    def cores(self, hardware: Hardware) -> Cores:
        """None of the die's."""
        return Cores(0, 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Host time only."""
        return Demand(head_us=self.us(hardware))


@dataclass(frozen=True, slots=True)
class HostRead(OpSpec):
    """A blocking copy of a few numbers to the host: ``host_read_us`` once the die has them.

    The host launches nothing meanwhile, so the die runs dry.  Source: profiled eager runs.
    """

    kind: ClassVar[str] = "host_read"

    def cores(self, hardware: Hardware) -> Cores:
        """None of the die's."""
        return Cores(0, 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Host time only."""
        return Demand(head_us=hardware["host_read_us"])
