"""What a kernel has to do: operations on the cube, bytes in and out, and the roofline of both."""

from __future__ import annotations

from dataclasses import dataclass

from calibration.profiles.mapping import Mapped
from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops import (
    BatchMatMul,
    GqaAttention,
    GroupedMatMul,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    QuantMatMul,
    RowOp,
)
from hardware_models.ops.tiling import DType
from hardware_models.ops.vector import TRAFFIC


@dataclass(frozen=True, slots=True)
class Work:
    """Operations (two a multiply-add) on the cube in ``dtype``, and bytes that must move."""

    operations: float
    bytes: float
    dtype: DType = "bf16"

    def roofline_us(self, hardware: Hardware) -> float:
        """The least time: all cube cores at their peak, or all bytes at the HBM rate."""
        peak = peak_tflops(hardware, self.dtype)
        return max(self.operations / (peak * 1e6), self.bytes / (hardware["hbm_read_gbps"] * 1e3))


def peak_tflops(hardware: Hardware, dtype: DType) -> float:
    """Peak of all cube cores: two operations a multiply-add."""
    macs = hardware[f"cube_mac_per_cycle_{dtype}"] * hardware["aic_count"]
    return 2 * macs * hardware["clock_ghz"] / 1e3


def work_of(mapped: Mapped, hardware: Hardware) -> Work | None:
    """The work of a kernel with a spec; None where its spec is not one of shapes."""
    spec = mapped.spec
    if spec is None:
        return None
    if isinstance(spec, RowOp):
        traffic = TRAFFIC[spec.op]
        moved = traffic.operands * spec.element_bytes + traffic.extra_bytes
        return Work(0.0, spec.rows * spec.width * moved)
    macs = _macs(spec)
    if macs:
        demand = spec.demand(hardware, spec.cores(hardware))
        moved = demand.hbm_bytes + sum(read.bytes for read in demand.weights)
        dtype: DType = getattr(spec, "dtype", "int8")
        return Work(2 * macs, moved, dtype)
    operands = mapped.kernel.inputs + mapped.kernel.outputs
    moved = float(sum(tensor.bytes for tensor in operands))
    return Work(0.0, moved) if moved else None


def _macs(spec: OpSpec) -> float:
    if isinstance(spec, MatMul | QuantMatMul):
        return float(spec.m * spec.k * spec.n)
    if isinstance(spec, BatchMatMul):
        return float(spec.batch * spec.m * spec.k * spec.n)
    if isinstance(spec, GroupedMatMul):
        return spec.rows * spec.k * spec.n
    return _attention_macs(spec)


def _attention_macs(spec: OpSpec) -> float:
    if isinstance(spec, MlaProlog):
        width = spec.heads * (spec.nope + spec.rope)
        per_row = spec.hidden * (spec.q_rank + spec.kv_rank + spec.rope) + spec.q_rank * width
        return float(spec.rows * (per_row + spec.heads * spec.nope * spec.kv_rank))
    if not isinstance(spec, MlaDecodeAttention | GqaAttention):
        return 0.0
    scores = spec.sequences * spec.rows * spec.heads * spec.kv_tokens
    if isinstance(spec, MlaDecodeAttention):
        return float(scores * (2 * spec.kv_rank + spec.rope))
    return float(scores * (spec.head_dim + (spec.v_head_dim or spec.head_dim)))
