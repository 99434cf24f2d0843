"""Vector ops of a decode step: norms, quantisation, activations, routing, sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops.tiling import exposed_us

RowKind = Literal[
    "rms_norm",
    "add_rms_norm",
    "add_rms_norm_quant",
    "dynamic_quant",
    "static_quant",
    "swiglu",
    "dequant_swiglu_quant",
    "softmax",
    "kv_norm_rope",
    "rope",
    "activation",
    "cast",
    "add",
    "move",
    "select",
    "gather",
    "transpose",
    "re_routing",
    "finalize_routing",
    "sort",
    "exp",
    "weight_relayout",
]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a row op moves for each input element, and how they overlap with compute.

    ``operands`` counts 16-bit-or-wider elements read and written, ``extra_bytes`` int8 ones.
    With ``short_runs`` the traffic itself is slower for unaligned rows and for elements of more
    than 4 bytes.
    """

    operands: float
    extra_bytes: float = 0.0
    overlap: float = 2.0
    short_runs: bool = False


# Elements of the first input's type read and written for each of its elements.  Norms and
# softmax reduce a row before they scale it, so their passes do not overlap.
TRAFFIC: dict[RowKind, Traffic] = {
    "rms_norm": Traffic(2, overlap=1.0),
    "add_rms_norm": Traffic(4, overlap=1.0),
    "add_rms_norm_quant": Traffic(3, 1.0, overlap=1.0),
    "dynamic_quant": Traffic(1, 1.0),
    "static_quant": Traffic(1, 1.0),
    "swiglu": Traffic(1.5),
    "dequant_swiglu_quant": Traffic(1, 0.5),
    "softmax": Traffic(2, overlap=1.0),
    "kv_norm_rope": Traffic(2),
    "rope": Traffic(2),
    "activation": Traffic(2),
    "cast": Traffic(2),
    "add": Traffic(3),
    "move": Traffic(2),
    "select": Traffic(3),
    "gather": Traffic(2),
    "transpose": Traffic(2, short_runs=True),
    "re_routing": Traffic(2),
    "finalize_routing": Traffic(2),
    "sort": Traffic(4),
    "exp": Traffic(2),
    "weight_relayout": Traffic(2),
}

_BLOCK_BYTES = 32
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class RowOp(OpSpec):
    """An op that treats ``rows`` rows of ``width`` elements one by one, dealt over AIV cores.

    Time = head + cost per core that the op asks for + overlap of (ceil(rows / cores) x (row
    cost + cost per 1024 elements), bytes / rate).  Head, row cost, element cost, rate and
    the factor of unaligned rows are parameters of each kind (``rms_norm_head_us`` ...).  Rows are
    unaligned where they are no whole number of 32 B blocks.  Activations may lie in L2, so
    the rate may exceed what HBM gives, and they do not load HBM.  A transpose moves short runs:
    unaligned rows slow its traffic by ``transpose_unaligned_factor``, and elements wider than
    4 bytes, which it takes apart, by ``transpose_wide_factor`` (published 910B2 rows).
    """

    kind: ClassVar[str] = "row_op"
    op: RowKind
    rows: int
    width: int
    element_bytes: int = 2

    def cores(self, hardware: Hardware) -> Cores:
        """At most one row per vector core and wave."""
        return Cores(0, max(1, min(self.rows, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        traffic = TRAFFIC[self.op]
        row_us = (
            hardware[f"{self.op}_row_us"]
            + hardware[f"{self.op}_us_per_kelement"] * self.width / 1024
        )
        aligned = self.width * self.element_bytes % _BLOCK_BYTES == 0
        slow = 1.0 if aligned else hardware[f"{self.op}_unaligned_factor"]
        row_us *= slow
        compute_us = math.ceil(self.rows / granted.aiv) * row_us
        moved = traffic.operands * self.element_bytes + traffic.extra_bytes
        # A limit on cores limits what they pull.
        wanted = self.cores(hardware).aiv
        share = granted.aiv / wanted
        memory_us = self.rows * self.width * moved / (hardware[f"{self.op}_gbps"] * 1e3 * share)
        if traffic.short_runs:
            memory_us *= slow
            if self.element_bytes > _WORD_BYTES:
                memory_us *= hardware[f"{self.op}_wide_factor"]
        parts = (compute_us, memory_us)
        return Demand(
            head_us=hardware[f"{self.op}_head_us"]
            + hardware["vector_block_us"] * wanted
            + exposed_us(parts, traffic.overlap),
            vector_us=max(parts),
        )


@dataclass(frozen=True, slots=True)
class GatingTopK(OpSpec):
    """Softmax over the router's logits and the top-k of score plus bias (MoeGatingTopK).

    Source: 256 rows of 256 experts in network on A3, and the steps of LongCat-Flash.
    """

    kind: ClassVar[str] = "gating_topk"
    rows: int
    width: int

    def cores(self, hardware: Hardware) -> Cores:
        """At most one row per vector core and wave."""
        return Cores(0, max(1, min(self.rows, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Head + waves x cost per row (``gating_row_us``, 768 wide; by width)."""
        waves = math.ceil(self.rows / granted.aiv)
        return Demand(
            head_us=hardware["vector_head_us"]
            + hardware["vector_block_us"] * self.cores(hardware).aiv,
            vector_us=waves * hardware["gating_row_us"] * self.width / 768,
        )


@dataclass(frozen=True, slots=True)
class Embedding(OpSpec):
    """Gather of ``rows`` rows of ``width`` bf16 elements from a table in HBM.

    Time = ``gather_head_us`` + the slower of waves of rows at ``gather_us_per_kelement`` and
    their bytes.  Source: the gathers of served models on A3 (GatherV2/V3).
    """

    kind: ClassVar[str] = "embedding"
    rows: int
    width: int

    def cores(self, hardware: Hardware) -> Cores:
        """At most one row per vector core and wave."""
        return Cores(0, max(1, min(self.rows, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Head + rows from HBM through the granted vector cores, as a gather."""
        return Demand(
            head_us=hardware["gather_head_us"],
            vector_us=math.ceil(self.rows / granted.aiv)
            * hardware["gather_us_per_kelement"]
            * self.width
            / 1024,
            hbm_bytes=float(self.rows * self.width * 2),
            hbm_cap_gbps=granted.aiv * hardware["hbm_per_aiv_gbps"],
        )


@dataclass(frozen=True, slots=True)
class Sample(OpSpec):
    """Greedy sampling: argmax over ``rows`` x ``width`` logits.

    Time = head + elements x ``argmax_us_per_melement`` (ArgMaxV2 in network on A3).
    """

    kind: ClassVar[str] = "sample"
    rows: int
    width: int

    def cores(self, hardware: Hardware) -> Cores:
        """All vector cores."""
        return Cores(0, hardware.count("aiv_count"))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        scale = hardware.count("aiv_count") / granted.aiv
        elements = self.rows * self.width / 1e6
        return Demand(
            head_us=hardware["vector_head_us"],
            vector_us=elements * hardware["argmax_us_per_melement"] * scale,
        )
