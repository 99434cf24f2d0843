"""MLA on the die: the fused prolog and absorbed paged decode attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hardware_models.demand import Cores, Demand, OpSpec, WeightRead
from hardware_models.hardware import Hardware
from hardware_models.ops.tiling import (
    ELEMENT_BYTES,
    DType,
    all_cores,
    cube_cycles_per_mac,
    cube_demand,
    plan_cube,
)


@dataclass(frozen=True, slots=True)
class MlaProlog(OpSpec):
    """Fused Q/KV projections, norms, RoPE and cache write (npu_mla_prolog_v3).

    Four dependent products (q_a, kv_a, q_b, uk) in one kernel: four cube heads
    (``mla_prolog_heads``) plus the bytes of all four weights.  ``weights`` holds the
    resident names in the order q_a, q_b, kv_a, uk.
    """

    kind: ClassVar[str] = "mla_prolog"
    rows: int
    hidden: int
    q_rank: int
    kv_rank: int
    rope: int
    nope: int
    heads: int
    dtype: DType
    weights: tuple[str, str, str, str]

    def cores(self, hardware: Hardware) -> Cores:
        """A mixed kernel over all cores."""
        return all_cores(hardware, vector=True)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        size = ELEMENT_BYTES[self.dtype]
        products = (
            (self.hidden, self.q_rank, 1),
            (self.q_rank, self.heads * (self.nope + self.rope), 1),
            (self.hidden, self.kv_rank + self.rope, 1),
            (self.nope, self.kv_rank, self.heads),
        )
        cube_us = sum(
            plan_cube(hardware, self.rows, k, n, self.dtype, granted.aic, copies).cube_us
            for k, n, copies in products
        )
        reads = tuple(
            WeightRead(name, float(k * n * copies * size))
            for name, (k, n, copies) in zip(self.weights, products, strict=True)
        )
        return cube_demand(
            hardware,
            head_us=hardware["mla_prolog_heads"] * hardware["cube_head_us"],
            cube_us=cube_us,
            pulling_cores=granted.aic,
            weights=reads,
        )


@dataclass(frozen=True, slots=True)
class MlaDecodeAttention(OpSpec):
    """Absorbed MLA over a paged latent cache: ``sequences`` x ``rows`` query rows each.

    Per sequence, rows x heads query rows (in steps of 16) meet kv_tokens latents of
    width kv_rank + rope for the scores and kv_rank for the values.  Time =
    ``attention_fixed_us`` + max(MACs at ``attention_cube_efficiency``, KV bytes / bandwidth).
    KV is split over all cores (flash decode), so cores are used evenly.
    """

    kind: ClassVar[str] = "mla_attention"
    sequences: int
    rows: int
    heads: int
    kv_tokens: int
    kv_rank: int
    rope: int
    dtype: DType

    def cores(self, hardware: Hardware) -> Cores:
        """A mixed kernel over all cores."""
        return all_cores(hardware, vector=True)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class; MAC rates by the vendor's cube figures."""
        query_rows = math.ceil(self.rows * self.heads / 16) * 16
        kv_tokens = self.kv_tokens + self.rows
        macs = self.sequences * query_rows * kv_tokens * (2 * self.kv_rank + self.rope)
        cycles = (
            macs
            * cube_cycles_per_mac(hardware, self.dtype)
            * hardware["matmul_efficiency"]
            / hardware["attention_cube_efficiency"]
        )
        kv_bytes = (
            self.sequences * kv_tokens * (self.kv_rank + self.rope) * ELEMENT_BYTES[self.dtype]
        )
        return cube_demand(
            hardware,
            head_us=hardware["attention_fixed_us"],
            cube_us=cycles / (granted.aic * hardware["clock_ghz"] * 1e3),
            pulling_cores=granted.aic,
            hbm_bytes=float(kv_bytes),
        )
