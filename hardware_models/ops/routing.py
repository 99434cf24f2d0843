"""InitRouting: the first op of double routing, which sorts token copies by expert."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops.tiling import exposed_us

_IN_BYTES = 2
"""Rows arrive as 16-bit floats."""


@dataclass(frozen=True, slots=True)
class InitRouting(OpSpec):
    """Sort ``rows`` x ``topk`` expert ids and write ``copies`` rows of ``hidden`` in that order.

    Ids of zero experts are sorted but not copied.  No published row covers this op, so it is
    put together from what is known: the keys at the cost of ``sort``; the copies at the row
    and element cost and the rate of ``re_routing``, which moves rows by an index as well; with
    ``quantised`` the element cost of ``dynamic_quant``, and int8 instead of 16-bit rows.
    """

    kind: ClassVar[str] = "init_routing"
    rows: int
    topk: int
    copies: int
    hidden: int
    quantised: bool

    def cores(self, hardware: Hardware) -> Cores:
        """At most one copy per vector core and wave."""
        return Cores(0, max(1, min(self.copies, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class; compute and traffic overlap as in a row op (2-norm)."""
        elements = self.hidden / 1024
        row_us = hardware["re_routing_row_us"] + hardware["re_routing_us_per_kelement"] * elements
        if self.quantised:
            row_us += hardware["dynamic_quant_us_per_kelement"] * elements
        keys = math.ceil(self.rows * self.topk / granted.aiv)
        compute_us = (
            hardware["sort_us_per_kelement"] * keys / 1024
            + math.ceil(self.copies / granted.aiv) * row_us
        )
        moved = self.copies * self.hidden * (_IN_BYTES + (1 if self.quantised else _IN_BYTES))
        wanted = self.cores(hardware).aiv
        memory_us = moved / (hardware["re_routing_gbps"] * 1e3 * granted.aiv / wanted)
        parts = (compute_us, memory_us)
        return Demand(
            head_us=hardware["sort_head_us"]
            + hardware["vector_block_us"] * wanted
            + exposed_us(parts, 2.0),
            vector_us=max(parts),
        )
