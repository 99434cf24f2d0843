"""How a matmul's output tiles fall on cube cores: tile quantisation and split-K."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hardware_models.demand import Cores, Demand, WeightRead
from hardware_models.hardware import Hardware

DType = Literal["bf16", "int8", "fp32"]

ELEMENT_BYTES: dict[DType, int] = {"bf16": 2, "int8": 1, "fp32": 4}

# Output tiles (M x N) that fill L0C (128 KiB of fp32).  Source: published tiling cases of the
# die family; smaller shapes in this list made left-out rows no better.
TILES: tuple[tuple[int, int], ...] = ((128, 256), (256, 128))

# The shortest K a core is given when K is split over cores (three L1 steps of bf16).
SPLIT_K_MIN = 512


@dataclass(frozen=True, slots=True)
class CubePlan:
    """Result of tiling: cube time, and how many cores' worth of traffic run side by side."""

    cube_us: float
    effective_cores: float


def exposed_us(times_us: Sequence[float], power: float) -> float:
    """Time that imperfect overlap of a kernel's parts adds to the slowest of them.

    The p-norm of the parts less their maximum: power 1 is no overlap, a large one perfect
    overlap.  Powers were chosen by left-out rows of published kernels: 2 for products and
    quantisation, 1 for norms and grouped-query attention.
    """
    longest = max(times_us)
    if longest <= 0:
        return 0.0
    total = sum((time / longest) ** power for time in times_us)
    return float(longest * (total ** (1 / power) - 1))


def core_us(hardware: Hardware, macs: float, dtype: DType, efficiency: float) -> float:
    """Time of ``macs`` multiply-accumulates on one cube core at a sustained efficiency (0..1).

    Source: 4096 bf16, 8192 int8, 1024 fp32 MAC per cycle and core (vendor).
    """
    rate = hardware[f"cube_mac_per_cycle_{dtype}"] * hardware["clock_ghz"] * 1e3
    return macs / (rate * efficiency)


def plan_cube(
    hardware: Hardware,
    groups: Sequence[int],
    k: int,
    n: int,
    dtype: DType,
    cores: int,
    efficiency: float,
    *,
    l2_feeds: bool = True,
) -> CubePlan:
    """Best of the tile shapes for products of M x K by K x N, one for each M in ``groups``.

    The time of a tile shape is waves x tile work, where waves = ceil(tiles / cores); with
    fewer tiles than cores, K is split so that the idle cores help.  M counts in steps of 16
    rows (one cube fractal).  A tile takes its MACs, or the time in which a core draws both of
    its operands out of L2 (``l2_feeds``; without it cores that share an expert's rows are
    taken to share the reads too: grouped products were no better with it on left-out rows).
    """
    rows = [math.ceil(m / 16) * 16 for m in groups]
    size = ELEMENT_BYTES[dtype]
    best = CubePlan(math.inf, 1.0)
    for tile_m, tile_n in TILES:
        tiles = sum(math.ceil(m / tile_m) for m in rows) * math.ceil(n / tile_n)
        split = max(1, min(cores // tiles, k // SPLIT_K_MIN)) if tiles < cores else 1
        pieces = tiles * split
        waves = math.ceil(pieces / cores)
        height, width = min(max(rows), tile_m), min(math.ceil(n / 16) * 16, tile_n)
        tile_us = core_us(hardware, height * width * k / split, dtype, efficiency)
        if l2_feeds:
            operands = (height + width) * k / split * size
            tile_us = max(tile_us, operands / (hardware["l2_per_aic_gbps"] * 1e3))
        plan = CubePlan(waves * tile_us, pieces / waves)
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
    hbm_gbps: float,
    weights: tuple[WeightRead, ...] = (),
    hbm_bytes: float = 0.0,
    overlap: float = 2.0,
) -> Demand:
    """A demand whose traffic is pulled by cube cores (per-core HBM and L2 rates).

    ``hbm_gbps`` is the most that this kind of kernel draws from HBM with all cores; compute
    and traffic overlap with the power ``overlap`` (see :func:`exposed_us`).  What does not
    overlap slows the draw, so that a weight found in L2 shortens it as well.
    """
    moved = hbm_bytes + sum(read.bytes for read in weights)

    def drawn_gbps(gbps: float) -> float:
        if moved == 0:
            return 0.0
        parts = (cube_us, moved / (gbps * 1e3))
        return moved / (1e3 * (max(parts) + exposed_us(parts, overlap)))

    l2_gbps = min(pulling_cores * hardware["l2_per_aic_gbps"], hardware["l2_gbps"])
    return Demand(
        head_us=head_us,
        cube_us=cube_us,
        weights=weights,
        hbm_bytes=hbm_bytes,
        hbm_cap_gbps=drawn_gbps(min(pulling_cores * hardware["hbm_per_aic_gbps"], hbm_gbps)),
        l2_cap_gbps=drawn_gbps(l2_gbps),
    )


def all_cores(hardware: Hardware, *, vector: bool) -> Cores:
    """All cube cores, and with ``vector`` the two vector cores beside each."""
    return Cores(hardware.count("aic_count"), hardware.count("aiv_count") if vector else 0)
