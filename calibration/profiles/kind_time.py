"""Launches of one kind added up: time, achieved rates, roofline, counters, the twin's word."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from calibration.profiles.mapping import Mapped
from calibration.profiles.work import Work, peak_tflops, work_of
from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops.alone import alone_us

_ABOVE_ROOFLINE = 4.0


class Rater:
    """Work and the twin's time of kernels on a die; kernels of one spec are worked out once."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._known: dict[OpSpec, tuple[Work | None, float]] = {}

    def rate(self, mapped: Mapped) -> tuple[Work | None, float | None]:
        """The kernel's work and its time alone on the die in us; None where not known."""
        if mapped.spec is None:
            return None, None
        if mapped.spec not in self._known:
            twin_us = alone_us(mapped.spec, self.hardware)
            self._known[mapped.spec] = (work_of(mapped, self.hardware), twin_us)
        return self._known[mapped.spec]

    def checked(self, mapped: Mapped) -> Mapped:
        """The kernel, without its spec where the shapes ask for more than a die can do.

        Operands in L2 explain a small multiple of the HBM roofline; beyond that the row's
        shapes were misread.
        """
        work, _ = self.rate(mapped)
        allowed_us = _ABOVE_ROOFLINE * mapped.kernel.duration_us
        if work is None or work.roofline_us(self.hardware) <= allowed_us:
            return mapped
        return replace(mapped, spec=None, reason="its shapes ask for more than a die can do")


@dataclass(slots=True)
class KindTime:
    """Launches of one kind over all ranks and steps; times in us.

    ``rated_us`` is the time of those whose work is known, ``twin_us`` and ``modelled_us`` what
    the twin says for those that it models, and what they took.  Sums of recorded counters are
    weighted with the time of the kernels that have them.
    """

    kind: str
    count: int = 0
    total_us: float = 0.0
    operations: float = 0.0
    bytes: float = 0.0
    rated_us: float = 0.0
    roofline_us: float = 0.0
    twin_us: float = 0.0
    modelled_us: float = 0.0
    cube_peak: float = 0.0
    counters: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def tflops(self) -> float:
        """Achieved cube operations, 1e12 a second."""
        return self.operations / self.rated_us / 1e6 if self.rated_us else 0.0

    @property
    def gbps(self) -> float:
        """Achieved bytes, 1e9 a second."""
        return self.bytes / self.rated_us / 1e3 if self.rated_us else 0.0

    @property
    def of_roofline(self) -> float | None:
        """Least time over time taken, None where no work is known."""
        return self.roofline_us / self.rated_us if self.rated_us else None

    @property
    def cube_utilisation(self) -> float | None:
        """0..1: what the profiler recorded, else operations over peak; None without a cube."""
        if (recorded := self.counter("cube_utilization(%)")) is not None:
            return recorded / 100
        return self.operations / self.cube_peak if self.cube_peak else None

    def counter(self, name: str) -> float | None:
        """A recorded counter, weighted with time; None where none was recorded."""
        total, weight = self.counters.get(name, (0.0, 0.0))
        return total / weight if weight else None

    def add(
        self, mapped: Mapped, hit_rate: float | None, rater: Rater, compared_us: float | None
    ) -> None:
        """Count one launch, with its L2 hit rate (0..1) where one was recorded.

        ``compared_us`` is what the twin's time is held against: None where waits hide it.
        """
        kernel, time_us = mapped.kernel, mapped.kernel.duration_us
        self.count += 1
        self.total_us += time_us
        counters = dict(kernel.counters)
        if hit_rate is not None:
            counters["l2_hit_rate"] = hit_rate
        for name, value in counters.items():
            if value or name != "cube_utilization(%)":
                total, weight = self.counters.get(name, (0.0, 0.0))
                self.counters[name] = (total + value * time_us, weight + time_us)
        work, twin_us = rater.rate(mapped)
        if work is not None:
            self._rate(work, time_us, rater.hardware)
        if twin_us is not None and compared_us is not None:
            self.twin_us += twin_us
            self.modelled_us += compared_us

    def _rate(self, work: Work, time_us: float, hardware: Hardware) -> None:
        self.operations += work.operations
        self.bytes += work.bytes
        self.rated_us += time_us
        self.roofline_us += work.roofline_us(hardware)
        if work.operations:
            self.cube_peak += peak_tflops(hardware, work.dtype) * 1e6 * time_us
