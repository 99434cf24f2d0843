"""Matrix products: bf16/fp32 MatMul, int8 QuantMatMul, batched and grouped products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hardware_models.demand import Cores, Demand, OpSpec, WeightRead
from hardware_models.hardware import Hardware
from hardware_models.ops.tiling import (
    ELEMENT_BYTES,
    DType,
    all_cores,
    cube_demand,
    plan_cube,
)


@dataclass(frozen=True, slots=True)
class MatMul(OpSpec):
    """``[m, k] x [k, n]`` with a named weight; bf16 or fp32, cube cores only.

    Time = head + max(tiled compute, weight bytes / bandwidth).  Activations of a decode step
    (m x k, m x n) lie in L2 and are not charged to HBM.
    """

    kind: ClassVar[str] = "matmul"
    m: int
    k: int
    n: int
    dtype: DType
    weight: str

    def cores(self, hardware: Hardware) -> Cores:
        """All cube cores: with few tiles K is split."""
        return all_cores(hardware, vector=False)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class; the head is ``cube_head_us``."""
        plan = plan_cube(hardware, self.m, self.k, self.n, self.dtype, granted.aic)
        weight_bytes = float(self.k * self.n * ELEMENT_BYTES[self.dtype])
        return cube_demand(
            hardware,
            head_us=hardware["cube_head_us"],
            cube_us=plan.cube_us,
            pulling_cores=plan.effective_cores,
            weights=(WeightRead(self.weight, weight_bytes),),
        )


@dataclass(frozen=True, slots=True)
class QuantMatMul(OpSpec):
    """int8 ``[m, k] x [k, n]`` with per-token and per-channel scales (QuantBatchMatmul).

    As :class:`MatMul`, with a dequantising epilogue on the vector cores whose exposed time
    grows with the output columns (``quant_epilogue_us_per_kcol``) and does not shrink with
    cores: read off the published 12- and 24-core latencies of gate_up and down.
    """

    kind: ClassVar[str] = "quant_matmul"
    m: int
    k: int
    n: int
    weight: str

    def cores(self, hardware: Hardware) -> Cores:
        """All cube cores with their vector cores (a mixed kernel)."""
        return all_cores(hardware, vector=True)

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """See the class."""
        plan = plan_cube(hardware, self.m, self.k, self.n, "int8", granted.aic)
        head_us = hardware["cube_head_us"] + hardware["quant_epilogue_us_per_kcol"] * self.n / 1024
        return cube_demand(
            hardware,
            head_us=head_us,
            cube_us=plan.cube_us,
            pulling_cores=plan.effective_cores,
            weights=(WeightRead(self.weight, float(self.k * self.n)),),
        )


@dataclass(frozen=True, slots=True)
class BatchMatMul(OpSpec):
    """``batch`` products ``[m, k] x [k, n]`` (TransposeBatchMatMul, the w_uv absorption).

    Batches are dealt whole to cores, so the pull rate is quantised by ceil(batch / cores);
    the head is ``batch_matmul_head_factor`` cube heads (two passes through the tiling).
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
        plan = plan_cube(
            hardware, self.m, self.k, self.n, self.dtype, granted.aic, copies=self.batch
        )
        weight_bytes = float(self.batch * self.k * self.n * ELEMENT_BYTES[self.dtype])
        return cube_demand(
            hardware,
            head_us=hardware["cube_head_us"] * hardware["batch_matmul_head_factor"],
            cube_us=plan.cube_us,
            pulling_cores=plan.effective_cores,
            weights=(WeightRead(self.weight, weight_bytes),),
        )


@dataclass(frozen=True, slots=True)
class GroupedMatMul(OpSpec):
    """One launch over ``active_experts`` products ``[rows / active, k] x [k, n]``.

    Only the weights of experts that received rows are read (``active_experts`` may be an
    expectation, so it need not be whole).
    """

    kind: ClassVar[str] = "grouped_matmul"
    rows: float
    k: int
    n: int
    active_experts: float
    dtype: DType
    weight: str

    def cores(self, hardware: Hardware) -> Cores:
        """All cube cores; int8 needs the vector cores for its scales."""
        return all_cores(hardware, vector=self.dtype == "int8")

    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """Tiles of all active experts share the cores; bytes are those of active experts."""
        copies = max(1, round(self.active_experts))
        rows_each = max(1, round(self.rows / copies))
        plan = plan_cube(hardware, rows_each, self.k, self.n, self.dtype, granted.aic, copies)
        weight_bytes = self.active_experts * self.k * self.n * ELEMENT_BYTES[self.dtype]
        return cube_demand(
            hardware,
            head_us=hardware["grouped_matmul_head_us"],
            cube_us=plan.cube_us,
            pulling_cores=plan.effective_cores,
            weights=(WeightRead(self.weight, weight_bytes),),
        )
