"""Transfers between AFD roles that run on vector cores: camp2p, and direct to the experts.

All are one-sided: a sender writes into a window of the receiver and sets a flag; a receiver
takes cores once the rows are there and copies them out (cores that only poll are not
modelled).  camp2p has a kernel for each peer, which share the die's cores; direct has one
for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops.collective import exchange_us

DEFAULT_CORES = 8
"""Vector cores of a role's transfers where nothing is asked for (vllm-project/afd-plugin)."""


def _copy_us(size: float, hardware: Hardware, granted: Cores) -> float:
    """Time in which the granted cores move ``size`` bytes through their buffers."""
    return size / (hardware["aiv_transfer_gbps"] * 1e3 * granted.aiv)


@dataclass(frozen=True, slots=True)
class VectorSend(OpSpec):
    """camp2p: ``bytes`` to a paired die, written by vector cores over the link."""

    kind: ClassVar[str] = "vector_send"
    bytes: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Handshake, then the slower of the cores and the link.

        Source: XCCL sends on A3 (second-hand): under 20 us below 1 MB on 2 vector cores,
        more than 2.5 times slower on 2 than on 48 of them at 9 MB.
        """
        return Demand(
            head_us=hardware["aiv_send_latency_us"],
            vector_us=_copy_us(self.bytes, hardware, granted),
            link_bytes=float(self.bytes),
        )


@dataclass(frozen=True, slots=True)
class VectorReceive(OpSpec):
    """camp2p: the receiving side, which copies ``bytes`` out of the window.

    Source: XCCL sends on A3 (second-hand), whose cores copy at the same rate.
    """

    kind: ClassVar[str] = "vector_receive"
    bytes: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """The notify, then the copy."""
        return Demand(
            head_us=hardware["receive_notify_us"],
            vector_us=_copy_us(self.bytes, hardware, granted),
        )


def slot_bytes(hidden: int, element_bytes: int) -> int:
    """Window slot of a token copy on its way to an expert: data, and the scale of int8 values.

    6656 bytes for 6144 int8 values.  Source: torch_npu 2.13, the tokens of its schedule context.
    """
    scale = 4 if element_bytes == 1 else 0
    return math.ceil((hidden * element_bytes + scale) / 512) * 512


def back_slot_bytes(hidden: int) -> int:
    """Window slot of a token copy on its way back, in bf16."""
    return math.ceil(2 * hidden / 512) * 512


ExpertWay = Literal["attention_to_ffn", "ffn_to_attention"]


@dataclass(frozen=True, slots=True)
class ExpertSend(OpSpec):
    """direct: token copies to the dies of their experts, or back to where the tokens live.

    ``rows`` copies of ``row_bytes`` (a whole window slot) go over this op's link;
    ``die_rows`` is what the busier end handles in all, ``peers`` the dies at the other end.
    """

    kind: ClassVar[str] = "expert_send"
    way: ExpertWay
    rows: float
    die_rows: float
    row_bytes: int
    peers: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """The fused exchange's form: there as dispatch, back as combine; bytes on the link.

        On all vector cores it gives 167 and 164 us for the published A2E and E2A of 172 and
        193 us (96 tokens a die, top-8, 288 expert dies; second-hand), which nothing was
        fitted to.
        """
        form = "dispatch" if self.way == "attention_to_ffn" else "combine"
        return Demand(
            latency_us=exchange_us(form, self.die_rows, self.peers, hardware, granted),
            link_bytes=self.rows * self.row_bytes,
        )


FILL_CALLS = 10
"""Kernels that choose fillers, as :mod:`runtime_npu.backends.fillers` has them on an NPU."""


@dataclass(frozen=True, slots=True)
class FillChoices(OpSpec):
    """direct: ids of real experts in place of the zero experts among ``topk`` choices a row.

    A chain of small elementwise kernels, for no fused op does it: their heads (guessed to be
    those of other vector kernels) are what it takes.
    """

    kind: ClassVar[str] = "fill_choices"
    rows: int
    topk: int

    def cores(self, hardware: Hardware) -> Cores:
        """At most one row per vector core."""
        return Cores(0, max(1, min(self.rows, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """The heads of all kernels."""
        return Demand(head_us=FILL_CALLS * hardware["vector_head_us"])


@dataclass(frozen=True, slots=True)
class ExpertWait(OpSpec):
    """direct: until the copies of every die of the other role are there (worker_scheduler).

    So all ``group`` dies of the own role have theirs at the same time.  It runs on the AI CPU.
    Source: latency of 512 bytes between dies (``receive_notify_us``).
    """

    kind: ClassVar[str] = "expert_wait"
    group: int

    def cores(self, hardware: Hardware) -> Cores:
        """None."""
        return Cores(0, 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """The notify."""
        return Demand(head_us=hardware["receive_notify_us"])


@dataclass(frozen=True, slots=True)
class ExpertReceive(OpSpec):
    """direct: the receiving side, which copies ``rows`` slots out of its windows.

    On an FFN die into the order of the experts, on an attention die weighted and summed.
    Source: the rate of XCCL sends on A3 (second-hand).
    """

    kind: ClassVar[str] = "expert_receive"
    rows: float
    row_bytes: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores unless limited."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """The copy alone: :class:`ExpertWait` comes before it."""
        return Demand(vector_us=_copy_us(self.rows * self.row_bytes, hardware, granted))
