"""How a matmul's output tiles fall on cube cores: tile quantisation and split-K."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hardware_models.demand import Cores, Demand, WeightRead
from hardware_models.hardware import Hardware

DType = Literal["bf16", "int8", "fp32"]

ELEMENT_BYTES: dict[DType, int] = {"bf16": 2, "int8": 1, "fp32": 4}

# Output tiles (M x N) that fit L0C (128 KiB of fp32) with double buffering; the library
# picks among shapes like these.  Source: published tiling cases of the die family.
TILES: tuple[tuple[int, int], ...] = ((128, 256), (256, 128), (128, 128), (64, 256), (64, 128))

# The shortest K a core is given when K is split over cores (three L1 steps of bf16).
SPLIT_K_MIN = 512


@dataclass(frozen=True, slots=True)
class CubePlan:
    """Result of tiling: cube time, and how many cores' worth of traffic run side by side."""

    cube_us: float
    effective_cores: float


def cube_cycles_per_mac(hardware: Hardware, dtype: DType) -> float:
    """Cube cycles per multiply-accumulate on one core, at the sustained efficiency.

    Source: 4096 bf16, 8192 int8, 1024 fp32 MAC per cycle and core (vendor); efficiency is a
    fitted parameter.
    """
    return 1.0 / (hardware[f"cube_mac_per_cycle_{dtype}"] * hardware["matmul_efficiency"])


def plan_cube(
    hardware: Hardware, m: int, k: int, n: int, dtype: DType, cores: int, copies: int = 1
) -> CubePlan:
    """Best of the tile shapes for ``copies`` equal products of M x K by K x N.

    The time of a tile shape is waves x tile work, where waves = ceil(tiles / cores); with
    fewer tiles than cores, K is split so that the idle cores help.  M counts in steps of 16
    rows (one cube fractal).
    """
    cycles_per_mac = cube_cycles_per_mac(hardware, dtype)
    rows = math.ceil(m / 16) * 16
    best = CubePlan(math.inf, 1.0)
    for tile_m, tile_n in TILES:
        tiles = copies * math.ceil(rows / tile_m) * math.ceil(n / tile_n)
        split = max(1, min(cores // tiles, k // SPLIT_K_MIN)) if tiles < cores else 1
        pieces = tiles * split
        waves = math.ceil(pieces / cores)
        macs = min(rows, tile_m) * min(n, tile_n) * k / split
        plan = CubePlan(
            waves * macs * cycles_per_mac / (hardware["clock_ghz"] * 1e3), pieces / waves
        )
        # Ties in compute go to the shape that keeps more cores pulling weights.
        if (plan.cube_us, -plan.effective_cores) < (best.cube_us, -best.effective_cores):
            best = plan
    return best


def cube_demand(
    hardware: Hardware,
    *,
    head_us: float,
    cube_us: float,
    pulling_cores: float,
    weights: tuple[WeightRead, ...] = (),
    hbm_bytes: float = 0.0,
) -> Demand:
    """A demand whose traffic is pulled by cube cores (per-core HBM and L2 rates)."""
    return Demand(
        head_us=head_us,
        cube_us=cube_us,
        weights=weights,
        hbm_bytes=hbm_bytes,
        hbm_cap_gbps=pulling_cores * hardware["hbm_per_aic_gbps"],
        l2_cap_gbps=pulling_cores * hardware["l2_per_aic_gbps"],
    )


def all_cores(hardware: Hardware, *, vector: bool) -> Cores:
    """All cube cores, and with ``vector`` the two vector cores beside each."""
    return Cores(hardware.count("aic_count"), hardware.count("aiv_count") if vector else 0)
