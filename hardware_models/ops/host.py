"""What the host does in eager mode: launch ops, and wait for values that it must read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware


@dataclass(frozen=True, slots=True)
class HostLaunch(OpSpec):
    """The host issues one op: ``launch_host_eager_us``, 5.7 to 6.5 us under a profiler."""

    kind: ClassVar[str] = "host_launch"

    def cores(self, hardware: Hardware) -> Cores:
        """None of the die's."""
        return Cores(0, 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Host time only."""
        return Demand(head_us=hardware["launch_host_eager_us"])


@dataclass(frozen=True, slots=True)
class HostRead(OpSpec):
    """A blocking copy of a few numbers to the host: ``host_read_us`` once the die has them.

    The host launches nothing meanwhile, so the die runs dry.
    """

    kind: ClassVar[str] = "host_read"

    def cores(self, hardware: Hardware) -> Cores:
        """None of the die's."""
        return Cores(0, 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Host time only."""
        return Demand(head_us=hardware["host_read_us"])
