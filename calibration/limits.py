"""What no parameter can exceed, whatever a fit or a range says."""

from __future__ import annotations

import math

# HBM's nominal rate, and the highest published rate of reads that hit L2.
HBM_NOMINAL_GBPS = 1600.0
L2_GBPS = 5200.0


def limits(name: str) -> tuple[float, float]:
    """Smallest and largest value that physics allows a parameter of this name.

    An efficiency is a share; a product's or attention's bytes come from HBM; a vector op's may
    lie in L2; nothing gets faster by being unaligned, wide or row by row.
    """
    if name.endswith("_efficiency"):
        return 0.0, 1.0
    if name.endswith(("_hbm_gbps", "hbm_read_gbps")):
        return 0.0, HBM_NOMINAL_GBPS
    if name.endswith("_gbps"):
        return 0.0, L2_GBPS
    if name.endswith(("unaligned_factor", "unaligned_cube_factor", "wide_factor", "nd_factor")):
        return 1.0, math.inf
    return 0.0, math.inf


def clipped(name: str, value: float) -> float:
    """The value, or the limit that it exceeds."""
    low, high = limits(name)
    return min(max(value, low), high)
