"""Matrix products: bf16/fp32 MatMul, int8 QuantMatMul, batched and grouped products."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hardware_models.demand import Cores, Demand, OpSpec, WeightRead
from hardware_models.hardware import Hardware
from hardware_models.ops.tiling import (
    ELEMENT_BYTES,
    TILES,
    DType,
    all_cores,
    cube_demand,
    plan_cube,
)

Epilogue = Literal["fixpipe", "static", "vector", "int32"]
Layout = Literal["nz", "nd"]
"""A weight in the cube's fractals (FRACTAL_NZ), or row by row, to be put in order as it is read."""

# Bytes of an output element: int8 products come out as 16-bit floats unless left as int32.
_OUTPUT_BYTES = 2
_INT32_BYTES = 4
_SCALE_BYTES = 4

# Rows of K or N that are no multiple of this many bytes cannot be copied in whole blocks.
_BLOCK_BYTES = 32


def _alignment(hardware: Hardware, size: int, *widths: int) -> float:
    """``unaligned_cube_factor`` where a row of such a width is no whole number of 32 B blocks."""
    aligned = all(width * size % _BLOCK_BYTES == 0 for width in widths)
    return 1.0 if aligned else hardware["unaligned_cube_factor"]


@dataclass(frozen=True, slots=True)
class MatMul(OpSpec):
    """``[m, k] x [k, n]`` with a named weight; bf16 or fp32, cube cores only.

    Time = head + 2-norm of (tiled compute, bytes / bandwidth).  Bytes are the weight's and the
    activations'; decode products draw at most ``matmul_hbm_gbps`` (1.05 to 1.2 TB/s over 97 to
    232 MB weights in network on A3).  A weight laid out ``nd`` is drawn ``matmul_nd_factor``
    times slower than an ``nz`` one.  Source: catlass tiling cases of 20 x 16384 x 6144 in fp16
    on 20 cores, 181.4 us in NZ and 238.8 us row by row with the same tile, 139.6 us with the
    best NZ tile; library kernels in network on A3 differ by about 1.1.
    """

    kind: ClassVar[str] = "matmul"
    m: int
    k: int
    n: int
    dtype: DType
    weight: str
    layout: Layout = "nz"

    def cores(self, hardware: Hardware) -> Cores:
        """All cube cores: with few tiles K is split."""
        return all_cores(hardware, vector=False)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class; the head is ``cube_head_us``."""
        efficiency, size = hardware["matmul_efficiency"], ELEMENT_BYTES[self.dtype]
        plan = plan_cube(hardware, (self.m,), self.k, self.n, self.dtype, granted.aic, efficiency)
        # A plain product's weight is laid out [n, k]: only K makes its rows.
        slow = _alignment(hardware, size, self.k)
        reordered = hardware["matmul_nd_factor"] if self.layout == "nd" else 1.0
        return cube_demand(
            hardware,
            head_us=hardware["cube_head_us"],
            cube_us=plan.cube_us * slow,
            pulling_cores=plan.effective_cores / reordered,
            hbm_gbps=hardware["matmul_hbm_gbps"] / slow / reordered,
            weights=(WeightRead(self.weight, float(self.k * self.n * size)),),
            hbm_bytes=float(self.m * self.k * size + self.m * self.n * _OUTPUT_BYTES),
        )


@dataclass(frozen=True, slots=True)
class QuantMatMul(OpSpec):
    """int8 ``[m, k] x [k, n]`` with scales (QuantBatchMatmul).

    As :class:`MatMul`, with an ``epilogue``: ``vector`` dequantises on the vector cores
    (per-token scales, or bf16 output) and leaves the last wave of tiles exposed
    (``quant_epilogue_us_per_kelement``; fewer cores do not change it); ``static`` pays
    ``quant_static_us`` once; ``fixpipe`` (fp16 output) pays nothing, nor does ``int32``,
    which leaves the sums to DequantSwigluQuant.  Source: 12 rows of a 910B2 alone and 12 of A3
    in network.
    """

    kind: ClassVar[str] = "quant_matmul"
    m: int
    k: int
    n: int
    weight: str
    epilogue: Epilogue = "vector"

    def cores(self, hardware: Hardware) -> Cores:
        """All cube cores with their vector cores (a mixed kernel)."""
        return all_cores(hardware, vector=True)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        efficiency = hardware["quant_matmul_efficiency"]
        plan = plan_cube(hardware, (self.m,), self.k, self.n, "int8", granted.aic, efficiency)
        slow = _alignment(hardware, 1, self.k, self.n)
        output_bytes = _INT32_BYTES if self.epilogue == "int32" else _OUTPUT_BYTES
        head_us = hardware["cube_head_us"]
        if self.epilogue == "static":
            head_us += hardware["quant_static_us"]
        elif self.epilogue == "vector":
            tile_m, tile_n = TILES[0]
            exposed = min(self.m, tile_m) * min(self.n / hardware["aic_count"], tile_n)
            head_us += hardware["quant_epilogue_us_per_kelement"] * exposed / 1024
        return cube_demand(
            hardware,
            head_us=head_us,
            cube_us=plan.cube_us * slow,
            pulling_cores=plan.effective_cores,
            hbm_gbps=hardware["quant_matmul_hbm_gbps"] / slow,
            weights=(WeightRead(self.weight, float(self.k * self.n)),),
            hbm_bytes=float(self.m * self.k + self.m * self.n * output_bytes),
        )


@dataclass(frozen=True, slots=True)
class BatchMatMul(OpSpec):
    """``batch`` products ``[m, k] x [k, n]`` (TransposeBatchMatMul, the w_uv absorption).

    Batches are dealt whole to cores, so the pull rate is quantised by ceil(batch / cores);
    the head is ``batch_matmul_head_factor`` cube heads (two passes through the tiling).
    Source: two kernels in network on A3 and the uv op of LongCat-Flash on 12 and 24 cube cores.
    """

    kind: ClassVar[str] = "batch_matmul"
    batch: int
    m: int
    k: int
    n: int
    dtype: DType
    weight: str

    def cores(self, hardware: Hardware) -> Cores:
        """One cube core per batch at most."""
        return Cores(min(self.batch, hardware.count("aic_count")), 0)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        efficiency, size = hardware["matmul_efficiency"], ELEMENT_BYTES[self.dtype]
        groups = (self.m,) * self.batch
        plan = plan_cube(hardware, groups, self.k, self.n, self.dtype, granted.aic, efficiency)
        weight_bytes = float(self.batch * self.k * self.n * size)
        return cube_demand(
            hardware,
            head_us=hardware["cube_head_us"] * hardware["batch_matmul_head_factor"],
            cube_us=plan.cube_us,
            pulling_cores=plan.effective_cores,
            hbm_gbps=hardware["hbm_read_gbps"],
            weights=(WeightRead(self.weight, weight_bytes),),
        )


@dataclass(frozen=True, slots=True)
class GroupedMatMul(OpSpec):
    """One launch over ``active_experts`` products ``[rows / active, k] x [k, n]``.

    Only the weights of experts that received rows are read (``active_experts`` may be an
    expectation, so it need not be whole).  ``groups`` gives the rows of each expert where
    they are known to differ; the largest group sets the tile.  Source: 11 rows of a 910B2
    alone; no row of an A3 die.
    """

    kind: ClassVar[str] = "grouped_matmul"
    rows: float
    k: int
    n: int
    active_experts: float
    dtype: DType
    weight: str
    groups: tuple[int, ...] = ()

    def cores(self, hardware: Hardware) -> Cores:
        """All cube cores; int8 needs the vector cores for its scales."""
        return all_cores(hardware, vector=self.dtype == "int8")

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Tiles of all active experts share the cores; bytes are those of active experts."""
        row_bytes = self.k * ELEMENT_BYTES[self.dtype] + self.n * _OUTPUT_BYTES
        return _grouped_demand(hardware, granted, self, self.dtype, row_bytes)


@dataclass(frozen=True, slots=True)
class GroupedMatMulSwigluQuant(OpSpec):
    """int8 :class:`GroupedMatMul`, SwiGLU of its result and per-token quantisation, one launch.

    ``n`` counts the columns of gate and up together (n / 2 leave the kernel, in int8 with an
    fp32 scale a row).  Time = the product + the vector cores' work on its rows, at the row and
    element cost of ``dequant_swiglu_quant``.  Source: the interface of
    npu_grouped_matmul_swiglu_quant and 7 rows of a 910B2, each with the re-laying of its weight
    in front: left out, they are within 4.1% on average (as a plain grouped product 4.3%, with
    the vector work hidden behind the product 4.5%).  It has no parameter of its own.
    """

    kind: ClassVar[str] = "grouped_matmul_swiglu_quant"
    rows: float
    k: int
    n: int
    active_experts: float
    weight: str
    groups: tuple[int, ...] = ()

    def cores(self, hardware: Hardware) -> Cores:
        """All cube cores with their vector cores (a mixed kernel)."""
        return all_cores(hardware, vector=True)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class; the weights of active experts, rows in and half as many columns out."""
        row_bytes = self.k + self.n // 2 + _SCALE_BYTES
        product = _grouped_demand(hardware, granted, self, "int8", row_bytes)
        row_us = hardware["dequant_swiglu_quant_row_us"]
        row_us += hardware["dequant_swiglu_quant_us_per_kelement"] * self.n / 1024
        vector_us = math.ceil(self.rows / granted.aiv) * row_us
        return replace(product, head_us=product.head_us + vector_us)


def _grouped_demand(
    hardware: Hardware,
    granted: Cores,
    spec: GroupedMatMul | GroupedMatMulSwigluQuant,
    dtype: DType,
    row_bytes: int,
) -> Demand:
    """A grouped product of which each row moves ``row_bytes`` of activations in and out."""
    copies = max(1, round(spec.active_experts))
    groups = spec.groups or (max(1, round(spec.rows / copies)),) * copies
    size = ELEMENT_BYTES[dtype]
    efficiency = hardware["grouped_matmul_efficiency"]
    plan = plan_cube(
        hardware, groups, spec.k, spec.n, dtype, granted.aic, efficiency, l2_feeds=False
    )
    slow = _alignment(hardware, size, spec.k, spec.n)
    weight_bytes = spec.active_experts * spec.k * spec.n * size
    return cube_demand(
        hardware,
        head_us=hardware["grouped_matmul_head_us"],
        cube_us=plan.cube_us * slow,
        pulling_cores=plan.effective_cores,
        hbm_gbps=hardware["grouped_matmul_hbm_gbps"] / slow,
        weights=(WeightRead(spec.weight, weight_bytes),),
        hbm_bytes=spec.rows * row_bytes,
    )
