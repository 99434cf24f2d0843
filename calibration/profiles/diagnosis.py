"""Where a profile's time goes: by op kind against the roofline, by step and by rank."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from calibration.profiles.folder import RankFiles
from calibration.profiles.kernels import Kernel
from calibration.profiles.kind_time import KindTime, Rater
from calibration.profiles.mapping import (
    Context,
    Mapped,
    Unmapped,
    UnmappedTally,
    map_kernel,
    type_of,
)
from calibration.profiles.measured import noted_context
from calibration.profiles.once import CountedKernels
from calibration.profiles.profile import RankProfile, read_rank
from calibration.profiles.skipped import SkippedRows
from hardware_models.hardware import Hardware
from twin.report.spans import common, gaps, length_us, union

EXCHANGES = ("dispatch", "combine", "collective", "hccl_collective")
"""Kinds whose time is communication, whether HCCL or a kernel on cores carries it."""

OTHER = "other"
_LONGEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step on one rank, in us; ``exposed_us`` is communication beside which nothing ran."""

    rank: int
    step: str
    total_us: float
    computing_us: float
    communication_us: float
    exposed_us: float

    @property
    def free_us(self) -> float:
        """Time in which the die did nothing."""
        return max(0.0, self.total_us - self.computing_us - self.exposed_us)


@dataclass(frozen=True, slots=True)
class StreamGaps:
    """Idle time between the kernels of one stream of one rank while no collective ran."""

    rank: int
    stream: str
    launches: int
    total_us: float
    median_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A whole profile; ``types_us`` is time by kernel type, collectives once."""

    kinds: Mapping[str, KindTime]
    steps: tuple[StepTime, ...]
    gaps: tuple[StreamGaps, ...]
    unmapped: tuple[Unmapped, ...]
    types: Mapping[str, tuple[int, float]]
    longest: tuple[Mapped, ...]
    skipped: tuple[SkippedRows, ...]
    simulated: bool

    def with_skipped(self, more: Iterable[SkippedRows]) -> Diagnosis:
        """The same with rows that were skipped elsewhere."""
        return replace(self, skipped=(*self.skipped, *more))

    @property
    def total_us(self) -> float:
        """Time of all launches, collectives once."""
        return sum(kind.total_us for kind in self.kinds.values())

    @property
    def mean_step_us(self) -> float:
        """Mean over steps of the slowest rank's time."""
        slowest: dict[str, float] = {}
        for step in self.steps:
            slowest[step.step] = max(slowest.get(step.step, 0.0), step.total_us)
        return statistics.fmean(slowest.values()) if slowest else 0.0

    def share(self, part: Callable[[StepTime], float]) -> float:
        """A part of the steps' time over all ranks and steps."""
        whole = sum(step.total_us for step in self.steps)
        return sum(part(step) for step in self.steps) / whole if whole else 0.0


def diagnose(
    files: Sequence[RankFiles],
    context: Context,
    hardware: Hardware,
    on_rank: Callable[[RankProfile], None] = lambda _: None,
) -> Diagnosis:
    """Read rank after rank (only one is held in memory) and add up.

    ``on_rank`` is called with each rank once it is read.

    Raises:
        InputError: a file cannot be used at all.
    """
    kinds: dict[str, KindTime] = {}
    types: dict[str, tuple[int, float]] = {}
    steps: list[StepTime] = []
    found_gaps: list[StreamGaps] = []
    tally = UnmappedTally()
    rater = Rater(hardware)
    longest: list[Mapped] = []
    skipped: list[SkippedRows] = []
    simulated = False
    for rank_files in files:
        rank = read_rank(rank_files)
        on_rank(rank)
        known = noted_context(rank_files, context)
        simulated |= rank.simulated_names is not None
        skipped += rank.skipped
        counted = rank.counted
        listed = (*counted.computing, *counted.collectives)
        mapped = [rater.checked(map_kernel(kernel, known)) for kernel in listed]
        for row in mapped:
            kind = kinds.setdefault(row.kind or OTHER, KindTime(row.kind or OTHER))
            compared_us = context.compared_us(row.kernel)
            kind.add(row, rank.l2_hit_rates.get(row.kernel.name), rater, compared_us)
            tally.add(row)
            count, time_us = types.get(type_of(row.kernel), (0, 0.0))
            types[type_of(row.kernel)] = (count + 1, time_us + row.kernel.duration_us)
        longest = sorted([*longest, *mapped], key=lambda row: -row.kernel.duration_us)[:_LONGEST]
        steps += _steps(rank, mapped)
        found_gaps += _gaps(rank.rank, counted)
    return Diagnosis(
        kinds=dict(sorted(kinds.items(), key=lambda item: -item[1].total_us)),
        steps=tuple(steps),
        gaps=tuple(found_gaps),
        unmapped=tuple(tally.rows()),
        types=types,
        longest=tuple(longest),
        skipped=tuple(skipped),
        simulated=simulated,
    )


def _steps(rank: RankProfile, mapped: Sequence[Mapped]) -> list[StepTime]:
    by_step: dict[str, list[Mapped]] = {}
    for row in mapped:
        by_step.setdefault(row.kernel.step, []).append(row)
    recorded = {step.step: step.total_us for step in rank.step_traces}
    found = []
    for step, rows in by_step.items():
        moving = union(_span(r.kernel) for r in rows if r.kind in EXCHANGES)
        computing = union(_span(r.kernel) for r in rows if r.kind not in EXCHANGES)
        starts = min(r.kernel.start_us for r in rows)
        ends = max(r.kernel.end_us for r in rows)
        found.append(
            StepTime(
                rank=rank.rank,
                step=step,
                total_us=max(recorded.get(step, 0.0), ends - starts),
                computing_us=length_us(computing),
                communication_us=length_us(moving),
                exposed_us=length_us(moving) - length_us(common(moving, computing)),
            )
        )
    return found


def _span(kernel: Kernel) -> tuple[float, float]:
    return kernel.start_us, kernel.end_us


def _gaps(rank: int, counted: CountedKernels) -> list[StreamGaps]:
    """Gaps within a step; between two steps the host rules, and in a collective it has work."""
    moving = [_span(kernel) for kernel in counted.collectives]
    streams: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in counted.computing:
        streams.setdefault((kernel.stream, kernel.step), []).append(kernel)
    lengths: dict[str, list[float]] = {}
    launches: dict[str, int] = {}
    for (stream, _), found in streams.items():
        own = [_span(kernel) for kernel in found]
        first, last = min(own)[0], max(end for _, end in own)
        inside = [span for span in moving if first < span[1] and span[0] < last]
        idle = (end - start for start, end in gaps(union([*own, *inside])))
        lengths.setdefault(stream, []).extend(idle)
        launches[stream] = launches.get(stream, 0) + len(found)
    return [
        StreamGaps(rank, stream, launches[stream], sum(times), statistics.median(times or [0.0]))
        for stream, times in lengths.items()
    ]
