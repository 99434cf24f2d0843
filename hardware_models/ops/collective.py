"""Collectives in AIV mode, and the fused MoE dispatch and combine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware

CollectiveKind = Literal["all_gather", "reduce_scatter", "all_to_all"]


def _aiv_slowdown(hardware: Hardware, granted: Cores) -> float:
    """How much longer an AIV-driven transfer takes on fewer vector cores than the die has.

    A power law with the fitted exponent ``collective_core_exponent`` (0: no effect).
    """
    share = hardware["aiv_count"] / granted.aiv
    return float(share ** hardware["collective_core_exponent"])


@dataclass(frozen=True, slots=True)
class Collective(OpSpec):
    """AllGather, ReduceScatter or AllToAll over ``group`` dies, driven by vector cores.

    ``payload_bytes`` is what one die contributes (all_gather), keeps (reduce_scatter) or
    sends (all_to_all).  Time = latency floor by group size + payload x cost per KB; the bytes
    that arrive (``(group - 1) x payload``, for all_to_all its share) also load the link.
    """

    kind: ClassVar[str] = "collective"
    op: CollectiveKind
    group: int
    payload_bytes: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Latency floor: ``collective_latency_us`` at 8 dies, by a power of the group size."""
        floor = (
            hardware["collective_latency_us"]
            * (self.group / 8.0) ** hardware["collective_group_exponent"]
        )
        per_kb = hardware["collective_us_per_kb"] * self.payload_bytes / 1024
        arriving = self.payload_bytes * (self.group - 1)
        if self.op == "all_to_all":
            arriving //= self.group
        return Demand(
            latency_us=(floor + per_kb) * _aiv_slowdown(hardware, granted),
            link_bytes=float(arriving),
        )


def _exchange(hardware: Hardware, granted: Cores, base_us: float, rows: float, ep: int) -> Demand:
    latency = (
        base_us
        + hardware["moe_exchange_us_per_row"] * rows
        + hardware["moe_exchange_us_per_ep_doubling"] * math.log2(max(ep, 1))
        + (hardware["ep_skew_us"] if ep > 1 else 0.0)
    )
    return Demand(latency_us=latency * _aiv_slowdown(hardware, granted))


@dataclass(frozen=True, slots=True)
class Dispatch(OpSpec):
    """Fused dispatch of ``rows`` token copies (tokens x real experts each) over ``ep`` dies.

    Time = base + rows x cost + log2(EP) x cost + skew of the ranks, from published
    low-latency rows at EP8 and EP32 on A3 (128 tokens, top-8).  Held on vector cores.
    """

    kind: ClassVar[str] = "dispatch"
    rows: float
    ep: int
    hidden: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        return _exchange(hardware, granted, hardware["dispatch_base_us"], self.rows, self.ep)


@dataclass(frozen=True, slots=True)
class Combine(OpSpec):
    """Fused combine: the way back of :class:`Dispatch`, in bf16, weighted and summed."""

    kind: ClassVar[str] = "combine"
    rows: float
    ep: int
    hidden: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        return _exchange(hardware, granted, hardware["combine_base_us"], self.rows, self.ep)
