"""The time of one op that has a die for itself: what a profiler lists for a kernel."""

from __future__ import annotations

from hardware_models.demand import Cores, OpSpec
from hardware_models.hardware import Hardware


def alone_us(
    spec: OpSpec, hardware: Hardware, granted: Cores | None = None, *, resident: bool = False
) -> float:
    """Head plus the slowest of compute, protocol and traffic.

    The same as the engine gives for a graph of this op alone, launch gap left out.
    ``granted`` defaults to all cores that the op can use.  Nothing lies in L2 beforehand, or
    with ``resident`` all of the op's weights.
    """
    demand = spec.demand(hardware, granted or spec.cores(hardware))
    weights = sum(read.bytes for read in demand.weights)
    moved = demand.hbm_bytes + weights
    hbm_gbps = min(hardware["hbm_read_gbps"], demand.hbm_cap_gbps or hardware["hbm_read_gbps"])
    l2_gbps = min(hardware["l2_gbps"], demand.l2_cap_gbps or hardware["l2_gbps"])
    times = (
        demand.cube_us,
        demand.vector_us,
        demand.latency_us,
        (demand.hbm_bytes if resident else moved) / (hbm_gbps * 1e3),
        moved / (l2_gbps * 1e3),
        demand.sdma_bytes / (hardware["sdma_gbps"] * 1e3),
        demand.link_bytes / (hardware["link_gbps"] * 1e3),
    )
    return demand.head_us + max(times)
