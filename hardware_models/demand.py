"""What one op asks of a die: the interface between op models and engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from hardware_models.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Cores:
    """A number of cube (AIC) and vector (AIV) cores."""

    aic: int
    aiv: int


@dataclass(frozen=True, slots=True)
class WeightRead:
    """Bytes of a named weight that an op reads once; a part may lie in L2 (prefetched)."""

    weight: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What an op asks of a die once its cores are granted.

    The op holds its cores for ``head_us`` (launch, tiling, pipeline fill), then runs its
    body.  The body ends when its compute (``cube_us``, ``vector_us``), its protocol time
    (``latency_us``) and its traffic are all done; whichever is slowest sets the rate.

    Times are what the *granted* cores need, tile quantisation included.  ``weights`` and
    ``hbm_bytes`` come from HBM, except the part of a weight that lies in L2 when the body
    starts; all of it passes through L2.  ``hbm_cap_gbps`` and ``l2_cap_gbps`` are what the
    granted cores can pull at most (per-core rate x cores, less what does not overlap with compute;
    0 = no cores pull, no cap).
    ``sdma_bytes`` and ``link_bytes`` are bytes moved by the SDMA engine and over the die's
    link to its peer.
    """

    head_us: float = 0.0
    cube_us: float = 0.0
    vector_us: float = 0.0
    latency_us: float = 0.0
    weights: tuple[WeightRead, ...] = ()
    hbm_bytes: float = 0.0
    hbm_cap_gbps: float = 0.0
    l2_cap_gbps: float = 0.0
    sdma_bytes: float = 0.0
    link_bytes: float = 0.0
    fills: WeightRead | None = None
    """A prefetch: the weight and bytes that lie in L2 as they arrive."""


@dataclass(frozen=True, slots=True)
class OpSpec(ABC):
    """Kind, shapes, dtypes and quantisation of one op; knows no schedule and no stream.

    Subclasses are frozen dataclasses in ``hardware_models.ops``, one family a module.
    """

    kind: ClassVar[str]

    @abstractmethod
    def cores(self, hardware: Hardware) -> Cores:
        """The cores that the op's tiling can use on this die when nothing limits it."""

    @abstractmethod
    def demand(self, hardware: Hardware, granted: Cores) -> Demand:
        """The demand on ``granted`` cores (at most :meth:`cores`, at least one if any)."""
