"""Attention on the die: fused MLA prolog, absorbed paged MLA, its merge, grouped-query."""

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
    core_us,
    cube_demand,
    exposed_us,
    plan_cube,
)

# Query rows of one tile, and the KV tokens that a tile reads at a time.  Source: block sizes
# that explain the 910B2 prefill rows (whole blocks count although a causal mask cuts them).
_TILE_ROWS = 128
_KV_BLOCK = 512
LSE_BYTES = 4
"""A partial result's log-sum-exp is fp32, whatever the type of the result."""


def kv_seen(rows: int, kv_tokens: int, causal: bool) -> float:
    """KV tokens that a query row meets on average; under a causal mask whole blocks count."""
    if not causal or rows == 1:
        return float(kv_tokens)
    before = kv_tokens - rows
    met, row = 0, 0
    while row < rows:
        # Rows up to the end of a block meet the same blocks.
        seen = (before + row) // _KV_BLOCK * _KV_BLOCK + _KV_BLOCK
        alike = min(rows, seen - before) - row
        met += alike * min(kv_tokens, seen)
        row += alike
    return met / rows


def busy_cores(tiles: int, kv_tokens: int, aic: int) -> float:
    """Cube cores that get a part of ``tiles`` tiles of query rows, each over ``kv_tokens``.

    With fewer tiles than cores the KV of each is split (flash decode), down to one block of
    512 tokens a core, so a longer KV is never faster; parts are dealt evenly.  Source: 12 MLA
    and 14 GQA rows of a 910B2; whole waves of blocks predicted left-out rows worse (4.3 against
    4.1% and 11.4 against 11.2%).
    """
    return min(float(aic), tiles * max(1.0, kv_tokens / _KV_BLOCK))


@dataclass(frozen=True, slots=True)
class MlaProlog(OpSpec):
    """Fused Q/KV projections, norms, RoPE and cache write (npu_mla_prolog_v3).

    Four dependent products (q_a, kv_a, q_b, uk) in one kernel: ``mla_prolog_head_us``, the
    bytes of all four weights overlapped with their tiled compute (2-norm), and
    ``mla_prolog_row_us`` a token for norms, RoPE and the cache write.  ``weights`` holds the
    resident names in the order q_a, q_b, kv_a, uk.  Source: 9 rows of a 910B2 alone and
    LongCat-Flash's prolog on 12 and 24 cube cores.
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
        efficiency = hardware["mla_prolog_efficiency"]
        products = (
            (self.hidden, self.q_rank, 1),
            (self.q_rank, self.heads * (self.nope + self.rope), 1),
            (self.hidden, self.kv_rank + self.rope, 1),
            (self.nope, self.kv_rank, self.heads),
        )
        cube_us = sum(
            plan_cube(
                hardware,
                (self.rows,) * copies,
                k,
                n,
                self.dtype,
                granted.aic,
                efficiency,
                l2_feeds=False,
            ).cube_us
            for k, n, copies in products
        )
        reads = tuple(
            WeightRead(name, float(k * n * copies * size))
            for name, (k, n, copies) in zip(self.weights, products, strict=True)
        )
        return cube_demand(
            hardware,
            head_us=hardware["mla_prolog_head_us"] + hardware["mla_prolog_row_us"] * self.rows,
            cube_us=cube_us,
            pulling_cores=granted.aic,
            hbm_gbps=hardware["hbm_read_gbps"],
            weights=reads,
        )


@dataclass(frozen=True, slots=True)
class MlaDecodeAttention(OpSpec):
    """Absorbed MLA over a latent cache: ``sequences`` x ``rows`` query rows each, causal.

    Per sequence, rows x heads query rows (in steps of 16) meet kv_tokens latents of
    width kv_rank + rope for the scores and kv_rank for the values.  Time =
    ``attention_fixed_us`` + ``attention_tile_us`` for each wave of 128-row tiles + the slowest
    of MACs at ``attention_cube_efficiency``, softmax, and KV bytes at ``attention_hbm_gbps``.
    KV is split over the cores (flash decode, :func:`busy_cores`), so they are used evenly;
    the merge of the parts is within ``attention_fixed_us``.
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
        query_rows = self.sequences * math.ceil(self.rows * self.heads / 16) * 16
        tiles = self.sequences * math.ceil(self.rows * self.heads / _TILE_ROWS)
        scores = query_rows * kv_seen(self.rows, self.kv_tokens, causal=True)
        macs = scores * (2 * self.kv_rank + self.rope)
        kv_bytes = self.sequences * self.kv_tokens * (self.kv_rank + self.rope)
        busy = busy_cores(tiles, self.kv_tokens, granted.aic)
        efficiency = hardware["attention_cube_efficiency"]
        demand = cube_demand(
            hardware,
            head_us=hardware["attention_fixed_us"]
            + hardware["attention_tile_us"] * math.ceil(tiles / granted.aic),
            cube_us=core_us(hardware, macs, self.dtype, efficiency) / busy,
            pulling_cores=busy,
            hbm_gbps=hardware["attention_hbm_gbps"],
            hbm_bytes=float(kv_bytes * ELEMENT_BYTES[self.dtype]),
            overlap=math.inf,
        )
        softmax_us = hardware["attention_softmax_us_per_kelement"] * scores / 1024
        return Demand(
            head_us=demand.head_us,
            cube_us=demand.cube_us,
            vector_us=softmax_us / busy,
            hbm_bytes=demand.hbm_bytes,
            hbm_cap_gbps=demand.hbm_cap_gbps,
            l2_cap_gbps=demand.l2_cap_gbps,
        )


@dataclass(frozen=True, slots=True)
class GqaAttention(OpSpec):
    """Attention with ``kv_heads`` shared by ``heads`` query heads (MHA where they are equal).

    A score costs ``head_dim`` MACs and its use ``v_head_dim`` (0: as wide as ``head_dim``);
    un-absorbed MLA has 192 and 128.  Time = ``gqa_fixed_us`` + ``gqa_tile_us`` for each wave
    of 128-row tiles + MACs at ``gqa_cube_efficiency`` + softmax + KV bytes at
    ``gqa_hbm_gbps``: on published 910B2 rows the parts add up rather than overlap.  Under a
    causal mask whole blocks of 512 tokens count.  KV is split as in the absorbed form.
    """

    kind: ClassVar[str] = "gqa_attention"
    sequences: int
    rows: int
    heads: int
    kv_heads: int
    kv_tokens: int
    head_dim: int
    causal: bool
    dtype: DType
    v_head_dim: int = 0

    def cores(self, hardware: Hardware) -> Cores:
        """A mixed kernel over all cores."""
        return all_cores(hardware, vector=True)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        group = self.rows * self.heads // self.kv_heads
        products = self.sequences * self.kv_heads
        scores = (
            products * math.ceil(group / 16) * 16 * kv_seen(self.rows, self.kv_tokens, self.causal)
        )
        tiles = products * math.ceil(group / _TILE_ROWS)
        busy = busy_cores(tiles, self.kv_tokens, granted.aic)
        widths = self.head_dim + (self.v_head_dim or self.head_dim)
        efficiency = hardware["gqa_cube_efficiency"]
        cube_us = core_us(hardware, scores * widths, self.dtype, efficiency) / busy
        vector_us = hardware["gqa_softmax_us_per_kelement"] * scores / 1024 / busy
        kv_bytes = products * self.kv_tokens * widths * ELEMENT_BYTES[self.dtype]
        cap_gbps = min(busy * hardware["hbm_per_aic_gbps"], hardware["gqa_hbm_gbps"])
        parts = (cube_us, vector_us, kv_bytes / (cap_gbps * 1e3))
        return Demand(
            head_us=hardware["gqa_fixed_us"]
            + hardware["gqa_tile_us"] * math.ceil(tiles / granted.aic)
            + exposed_us(parts, 1.0),
            cube_us=cube_us,
            vector_us=vector_us,
            hbm_bytes=float(kv_bytes),
            hbm_cap_gbps=cap_gbps,
            l2_cap_gbps=busy * hardware["l2_per_aic_gbps"],
        )


@dataclass(frozen=True, slots=True)
class AttentionUpdate(OpSpec):
    """Merge of ``parts`` partial attention results by their LSE (npu_attention_update).

    ``rows`` rows (tokens x heads) of ``width`` elements: O = sum of O_i exp(lse_i - lse) over
    the parts.  Each part costs a row as an elementwise add does (``add_row_us``,
    ``add_us_per_kelement``) and the exponential of its LSE (``exp_us_per_kelement``); bytes of
    all parts with their fp32 LSE, and of the result, at ``add_gbps``.  Source: the op's
    interface (at most 16 parts); no latency of it is published, so it borrows the add's form.
    """

    kind: ClassVar[str] = "attention_update"
    parts: int
    rows: int
    width: int
    dtype: DType

    def cores(self, hardware: Hardware) -> Cores:
        """At most one row per vector core and wave."""
        return Cores(0, max(1, min(self.rows, hardware.count("aiv_count"))))

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        part_us = hardware["add_row_us"] + hardware["add_us_per_kelement"] * self.width / 1024
        part_us += hardware["exp_us_per_kelement"] / 1024
        compute_us = math.ceil(self.rows / granted.aiv) * self.parts * part_us
        row_bytes = self.width * ELEMENT_BYTES[self.dtype]
        moved = self.rows * (self.parts * (row_bytes + LSE_BYTES) + row_bytes)
        wanted = self.cores(hardware).aiv
        memory_us = moved / (hardware["add_gbps"] * 1e3 * granted.aiv / wanted)
        parts_us = (compute_us, memory_us)
        return Demand(
            head_us=hardware["add_head_us"]
            + hardware["vector_block_us"] * wanted
            + exposed_us(parts_us, 2.0),
            vector_us=max(parts_us),
        )
