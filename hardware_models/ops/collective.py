"""Collectives in AIV mode, and the fused MoE dispatch and combine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware

HcclKind = Literal["all_gather", "reduce_scatter", "all_to_all", "all_reduce"]


def _aiv_slowdown(hardware: Hardware, granted: Cores) -> float:
    """How much longer an AIV-driven transfer takes on fewer vector cores than the die has.

    A power law with the fitted exponent ``collective_core_exponent`` (0: no effect).
    """
    share = hardware["aiv_count"] / granted.aiv
    return float(share ** hardware["collective_core_exponent"])


@dataclass(frozen=True, slots=True)
class Collective(OpSpec):
    """AllGather, ReduceScatter, AllToAll or AllReduce over ``group`` dies, on vector cores.

    ``payload_bytes`` is what one die contributes (all_gather), keeps (reduce_scatter), sends
    (all_to_all) or holds (all_reduce).  Time = latency floor by group size + payload x cost per
    KB; the bytes that arrive (``(group - 1) x payload``, for all_to_all its share) also load
    the link.  An all_reduce moves what a reduce_scatter and an all_gather of its parts
    (payload / group) move, 2 (group - 1) / group x payload, behind one floor: it is one kernel.
    Source: steps of LongCat-Flash, and small AIV collectives of 8 and 16 dies on A3.
    """

    kind: ClassVar[str] = "collective"
    op: HcclKind
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
        payload = float(self.payload_bytes)
        if self.op == "all_reduce":
            payload *= 2.0 / self.group
        per_kb = hardware["collective_us_per_kb"] * payload / 1024
        arriving = payload * (self.group - 1)
        if self.op == "all_to_all":
            arriving //= self.group
        return Demand(
            latency_us=(floor + per_kb) * _aiv_slowdown(hardware, granted),
            link_bytes=arriving,
        )


@dataclass(frozen=True, slots=True)
class HcclCollective(OpSpec):
    """A collective as HCCL's benchmark and a served model's profile run it (AIV mode).

    ``message_bytes`` is the whole message over all ``group`` dies (for an all_reduce, the
    tensor that each of them holds: it moves its share twice).  Up to
    ``hccl_switch_bytes`` a die, time = floor + message x cost; above it another protocol runs,
    with a floor and a cost of its own.  Both costs grow with the group by a power; a
    reduction costs ``hccl_reduce_factor`` times as much.  Source: published A3 collectives of
    8 and 16 dies.  The fused steps of the LongCat recipe are faster: :class:`Collective`.
    """

    kind: ClassVar[str] = "hccl_collective"
    op: HcclKind
    group: int
    message_bytes: float

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class; floors and costs are those of 16 dies, scaled by the group."""
        scale, megabytes = self.group / 16.0, self.message_bytes / 1e6
        protocol = (
            "small" if self.message_bytes / self.group <= hardware["hccl_switch_bytes"] else "large"
        )
        # The large protocol's floor falls as the group grows (8 dies: 150 us, 16: about 100).
        power = hardware[f"hccl_{protocol}_floor_power"] * (1 if protocol == "small" else -1)
        floor = hardware[f"hccl_{protocol}_floor_us"] * scale**power
        cost = hardware[f"hccl_{protocol}_us_per_mb"] * megabytes
        cost *= scale ** hardware[f"hccl_{protocol}_cost_power"]
        if self.op == "all_reduce":
            cost *= 2 / self.group
        if self.op in ("reduce_scatter", "all_reduce"):
            cost *= hardware["hccl_reduce_factor"]
        return Demand(latency_us=(floor + cost) * _aiv_slowdown(hardware, granted))


@dataclass(frozen=True, slots=True)
class BulkExchange(OpSpec):
    """Dispatch or combine of a prefill batch (DeepEP normal mode): bytes at a rate by EP.

    The rate at 8 dies falls with the group by a power (``moe_bulk_*``); ``older`` software of
    the same library reached another share of it.  Source: published A3 rates of 4096 tokens x
    8 experts at EP8 to EP128.
    """

    kind: ClassVar[str] = "bulk_exchange"
    op: Literal["dispatch", "combine"]
    ep: int
    bytes: float
    older: bool = False

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        power = hardware[f"moe_bulk_{self.op}_power"]
        gbps = hardware[f"moe_bulk_{self.op}_gbps"] * (self.ep / 8.0) ** -power
        if self.older:
            gbps *= hardware[f"moe_bulk_{self.op}_older_factor"]
        return Demand(latency_us=self.bytes / (gbps * 1e3) * _aiv_slowdown(hardware, granted))


def exchange_us(kind: str, rows: float, ep: int, hardware: Hardware, granted: Cores) -> float:
    """Time of a fused exchange of ``rows`` token copies: ``kind`` is dispatch or combine."""
    latency = (
        hardware[f"{kind}_base_us"]
        + hardware["moe_exchange_us_per_row"] * rows
        + hardware["moe_exchange_us_per_ep_doubling"] * math.log2(max(ep, 1))
        + (hardware["ep_skew_us"] if ep > 1 else 0.0)
    )
    return latency * _aiv_slowdown(hardware, granted)


@dataclass(frozen=True, slots=True)
class _Exchange(OpSpec):
    """``rows`` token copies (tokens x real experts each) between ``ep`` dies, on vector cores.

    Time = base of the kind + rows x cost + log2(EP) x cost + skew of the ranks, from published
    low-latency rows at EP8 and EP32 on A3 (128 tokens, top-8).
    """

    rows: float
    ep: int
    hidden: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        return Demand(latency_us=exchange_us(self.kind, self.rows, self.ep, hardware, granted))


@dataclass(frozen=True, slots=True)
class Dispatch(_Exchange):
    """Fused dispatch: token copies to the dies of their experts.

    Copies for zero (copy) experts stay where they are, so ``rows`` leaves them out.  Source:
    published low-latency rows at EP8 and EP32 on A3.
    """

    kind: ClassVar[str] = "dispatch"


@dataclass(frozen=True, slots=True)
class Combine(_Exchange):
    """Fused combine: the way back of :class:`Dispatch`, in bf16, weighted and summed.

    Source: the same rows.
    """

    kind: ClassVar[str] = "combine"
