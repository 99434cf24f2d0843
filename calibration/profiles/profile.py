"""A profile in memory: every rank's kernels, collectives and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from calibration.profiles.communication import CollectiveRecord, read_communication
from calibration.profiles.folder import RankFiles, find_ranks
from calibration.profiles.json_values import load_json
from calibration.profiles.kernels import Kernel, KernelFile, read_kernels
from calibration.profiles.once import CountedKernels, count_once
from calibration.profiles.skipped import SkippedRows, Skips
from calibration.profiles.summaries import (
    StepTrace,
    TypeTotal,
    read_l2_cache,
    read_statistic,
    read_step_trace,
)
from hardware_models.errors import InputError

SIMULATED = "simulated.json"
"""Beside the kernel table of a profile that the twin wrote, and of no other."""


@dataclass(frozen=True)
class RankProfile:
    """What one rank's files say.

    ``kernels`` are all rows of its kernel table, in file order, their starts from
    ``origin_us`` (a time of day).  Tables that the profiler did not write are empty.
    ``simulated_names`` is None for a measured profile; of one that the twin wrote it gives the
    twin's names of collectives by their rows'.  ``skipped`` says which rows could not be used:
    every sum is over the others.
    """

    files: RankFiles
    origin_us: int
    kernels: tuple[Kernel, ...]
    statistic: tuple[TypeTotal, ...]
    step_traces: tuple[StepTrace, ...]
    collectives: tuple[CollectiveRecord, ...]
    l2_hit_rates: Mapping[str, float]
    simulated_names: Mapping[str, str] | None
    skipped: tuple[SkippedRows, ...]

    @property
    def rank(self) -> int:
        """The rank's number."""
        return self.files.rank

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps in the order in which they ran; a profile without any has one, unnamed."""
        named = dict.fromkeys(kernel.step for kernel in self.kernels)
        return tuple(named) or ("",)

    @cached_property
    def counted(self) -> CountedKernels:
        """The kernels with every collective once."""
        return count_once(self.kernels)

    def totals_by_type(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Launches and us by (type, core), spans of collectives left out: op_statistic's sums."""
        totals: dict[tuple[str, str], tuple[int, float]] = {}
        for kernel in self.kernels:
            if not kernel.is_communication:
                count, time_us = totals.get((kernel.type, kernel.core), (0, 0.0))
                key = (kernel.type, kernel.core)
                totals[key] = (count + 1, time_us + kernel.duration_us)
        return totals


def read_profile(path: Path) -> tuple[RankProfile, ...]:
    """All ranks below a path.

    Raises:
        InputError: nothing of a profile is there, or a file of it cannot be used at all.
    """
    return tuple(read_rank(files) for files in find_ranks(path))


def read_rank(files: RankFiles) -> RankProfile:
    """Read one rank's files, its trace left out.

    Raises:
        InputError: a file cannot be used at all; names it and the line.
    """
    skips = Skips()
    table = _joined([read_kernels(path, skips) for path in files.kernels])
    statistic = files.file("op_statistic.csv")
    traces = files.file("step_trace_time.csv")
    communication = files.file("communication.json")
    cache = files.file("l2_cache.csv")
    mark = files.file(SIMULATED)
    return RankProfile(
        files=files,
        origin_us=table.origin_us,
        kernels=table.kernels,
        statistic=read_statistic(statistic, skips) if statistic else (),
        step_traces=read_step_trace(traces, skips) if traces else (),
        collectives=read_communication(communication, skips) if communication else (),
        l2_hit_rates=read_l2_cache(cache, skips) if cache else {},
        simulated_names=_simulated_names(mark) if mark else None,
        skipped=skips.rows(),
    )


def _simulated_names(path: Path) -> dict[str, str]:
    data = load_json(path)
    names = data.get("collectives") if isinstance(data, dict) else None
    if not isinstance(names, dict):
        raise InputError("collectives", names, "an object of names", f"{path}:1")
    return {str(name): str(op) for name, op in names.items()}


def _joined(tables: list[KernelFile]) -> KernelFile:
    """Slices of one run on one clock."""
    if len(tables) == 1:
        return tables[0]
    origin = min((table.origin_us for table in tables if table.kernels), default=0)
    kernels = [
        replace(kernel, start_us=kernel.start_us + (table.origin_us - origin))
        for table in tables
        for kernel in table.kernels
    ]
    return KernelFile(tuple(sorted(kernels, key=lambda kernel: kernel.start_us)), origin)
