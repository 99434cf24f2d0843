"""Vector ops of a decode step: norms, quantisation, activations, routing, sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware

RowKind = Literal[
    "rms_norm",
    "add_rms_norm",
    "dynamic_quant",
    "swiglu",
    "dequant_swiglu_quant",
    "cast",
    "add",
]
_PLAIN: frozenset[str] = frozenset({"cast", "add"})
"""Elementwise ops without a row reduction: cheaper heads, no cost per row."""


@dataclass(frozen=True, slots=True)
class RowOp(OpSpec):
    """An op that treats ``rows`` rows of ``width`` elements one by one, dealt over AIV cores.

    Time = head + ceil(rows / cores) x (row cost + cost per 1024 elements).  The three
    numbers were read off in-network A3 kernels at decode sizes (norms, quantisation, SwiGLU
    of 1 to 256 rows: within about 15%); plain elementwise ops have a head of their own.
    """

    kind: ClassVar[str] = "row_op"
    op: RowKind
    rows: int
    width: int

    def cores(self, hardware: Hardware) -> Cores:
        """At most one row per vector core and wave."""
        return Cores(0, max(1, min(self.rows, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        waves = math.ceil(self.rows / granted.aiv)
        plain = self.op in _PLAIN
        row_us = hardware["vector_us_per_kelement"] * self.width / 1024
        if not plain:
            row_us += hardware["vector_row_us"]
        head = hardware["elementwise_head_us" if plain else "vector_head_us"]
        return Demand(head_us=head, vector_us=waves * row_us)


@dataclass(frozen=True, slots=True)
class GatingTopK(OpSpec):
    """Softmax over the router's logits and the top-k of score plus bias (MoeGatingTopK)."""

    kind: ClassVar[str] = "gating_topk"
    rows: int
    width: int

    def cores(self, hardware: Hardware) -> Cores:
        """At most one row per vector core and wave."""
        return Cores(0, max(1, min(self.rows, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Head + waves x cost per row (``gating_row_us``, from 256 x 256 in network on A3)."""
        waves = math.ceil(self.rows / granted.aiv)
        return Demand(
            head_us=hardware["vector_head_us"], vector_us=waves * hardware["gating_row_us"]
        )


@dataclass(frozen=True, slots=True)
class Embedding(OpSpec):
    """Gather of ``rows`` rows of ``width`` elements from a table in HBM."""

    kind: ClassVar[str] = "embedding"
    rows: int
    width: int

    def cores(self, hardware: Hardware) -> Cores:
        """At most one row per vector core and wave."""
        return Cores(0, max(1, min(self.rows, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Head + rows from HBM through the granted vector cores."""
        return Demand(
            head_us=hardware["vector_head_us"],
            vector_us=hardware["vector_us_per_kelement"] * self.width / 1024,
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
