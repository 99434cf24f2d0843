"""HCCL collectives and DeepEP dispatch/combine on A3."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.kernel import KernelRow, Place
from calibration.reading import Line
from hardware_models.demand import OpSpec
from hardware_models.ops import BulkExchange, Combine, Dispatch, HcclCollective
from hardware_models.ops.collective import HcclKind
from hardware_models.shapes import kind_of

HCCL_COLUMNS = ("op", "num_dies", "message_bytes", "bench_us", "production_profiler_us", "source")
DEEPEP_COLUMNS = (
    "mode", "op", "ep", "latency_us", "bw_GBps", "tokens_per_rank", "hidden", "topk", "dtype",
    "source",
)  # fmt: skip

_DIE = "a3-752t"
_HCCL: dict[str, HcclKind] = {
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "allreduce": "all_reduce",
}
_ELEMENT_BYTES = {"INT8": 1, "BF16": 2, "FP16": 2}


def read_hccl(lines: Sequence[Line], path: str) -> list[KernelRow]:
    """The in-network time where the table has one, else the benchmark's; ``place`` says which."""
    return [_hccl_row(line, path) for line in lines]


def _hccl_row(line: Line, path: str) -> KernelRow:
    name = line.text("op")
    group = line.integer("num_dies")
    size = line.number_of("message_bytes", 1, 1e12, "bytes")
    in_network = bool(line.fields["production_profiler_us"].strip())
    place: Place = "in_network" if in_network else "isolated"
    measured_us = line.time_us("production_profiler_us" if in_network else "bench_us")
    if line.fields["bench_us"].strip():
        line.time_us("bench_us")  # checked where it is not used, too
    op = _HCCL.get(name.lower().replace("_", ""))
    spec = HcclCollective(op, group, size) if op and group > 1 else None
    return KernelRow(
        row=f"{path}:{line.number}",
        kind=kind_of(spec) if spec else name,
        setting=f"{name} over {group} dies, {size:g} B, {place}",
        specs=(spec,) if spec else (),
        measured_us=measured_us,
        hardware=_DIE,
        place=place,
        source=line.text("source"),
        reason="" if spec else f"no model of collective {name}",
    )


def read_deepep(lines: Sequence[Line], path: str) -> list[KernelRow]:
    """Low-latency rows by their latency; normal-mode rows by bytes over their bandwidth."""
    return [_deepep_row(line, path) for line in lines]


def _deepep_row(line: Line, path: str) -> KernelRow:
    mode, name = line.text("mode"), line.text("op")
    ep, tokens = line.integer("ep"), line.integer("tokens_per_rank")
    hidden, topk = line.integer("hidden"), line.integer("topk")
    if line.text("dtype").upper() not in _ELEMENT_BYTES:
        raise line.fault("dtype", ", ".join(_ELEMENT_BYTES))
    size = float(tokens * topk * hidden * _ELEMENT_BYTES[line.text("dtype").upper()])
    if line.fields["latency_us"].strip():
        measured_us = line.time_us("latency_us")
    else:
        measured_us = size / (line.number_of("bw_GBps", 0.1, 1000, "GB/s") * 1e3)
    spec, reason = _exchange(mode, name, ep, tokens * topk, hidden, size)
    return KernelRow(
        row=f"{path}:{line.number}",
        kind=kind_of(spec) if spec else f"{mode} {name}",
        setting=f"{mode} {name} EP{ep}, {tokens} tokens x {topk}, hidden {hidden}",
        specs=(spec,) if spec else (),
        measured_us=measured_us,
        hardware=_DIE,
        place="isolated",
        source=line.text("source"),
        reason=reason,
    )


def _exchange(
    mode: str, name: str, ep: int, rows: int, hidden: int, size: float
) -> tuple[OpSpec | None, str]:
    if name not in ("dispatch", "combine"):
        return None, f"no model of {name}"
    if mode == "low_latency":
        cls = Dispatch if name == "dispatch" else Combine
        return cls(float(rows), ep, hidden), ""
    if mode in ("normal", "normal-old"):
        older = mode == "normal-old"
        return BulkExchange("dispatch" if name == "dispatch" else "combine", ep, size, older), ""
    return None, f"no model of mode {mode}"
