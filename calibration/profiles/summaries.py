"""Reading the small tables: op_statistic.csv, step_trace_time.csv, l2_cache.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calibration.profiles.skipped import Skips
from calibration.profiles.table import ProfileTable, RowError

_STEP_PARTS = {
    "computing_us": "Computing",
    "exposed_us": "Communication(Not Overlapped)",
    "overlapped_us": "Overlapped",
    "communication_us": "Communication",
    "free_us": "Free",
}


@dataclass(frozen=True, slots=True)
class TypeTotal:
    """A row of op_statistic: what the profiler itself added up for a kernel type."""

    type: str
    core: str
    count: int
    total_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """A row of step_trace_time: where a step's time went on one rank, in us."""

    step: str
    computing_us: float
    exposed_us: float
    overlapped_us: float
    communication_us: float
    free_us: float

    @property
    def total_us(self) -> float:
        """The step: computing, communication that nothing hid, and idle time."""
        return self.computing_us + self.exposed_us + self.free_us


def read_statistic(path: Path, skips: Skips) -> tuple[TypeTotal, ...]:
    """Rows of op_statistic.csv; communication has none there, Level0 no such file.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    table = ProfileTable(path, skips)
    type_, core = table.needed("OP Type", "Op Type"), table.column("Core Type")
    count, total = table.needed("Count"), table.needed("Total Time(us)")
    found = []
    for row in table.rows():
        try:
            launches = row.count(count, "the count", 1 << 40)
            if launches is None:
                raise RowError("the count is missing")
            time_us = row.number(total, "the total")
            if time_us is None:
                raise RowError("the total is missing")
        except RowError as error:
            table.skip(row, str(error))
        else:
            found.append(TypeTotal(row.text(type_), row.text(core), launches, time_us))
    return tuple(found)


def read_step_trace(path: Path, skips: Skips) -> tuple[StepTrace, ...]:
    """Rows of step_trace_time.csv.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    table = ProfileTable(path, skips)
    step = table.column("Step")
    parts = {name: table.needed(title) for name, title in _STEP_PARTS.items()}
    found = []
    for row in table.rows():
        try:
            times = {name: row.time_us(parts[name], title) for name, title in _STEP_PARTS.items()}
        except RowError as error:
            table.skip(row, str(error))
        else:
            found.append(StepTrace(step=row.text(step), **times))
    return tuple(found)


def read_l2_cache(path: Path, skips: Skips) -> Mapping[str, float]:
    """Mean L2 hit rate (0..1) by kernel name, where the profiler recorded one.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    table = ProfileTable(path, skips)
    name, rate = table.needed("Op Name"), table.needed("Hit Rate")
    rates: dict[str, list[float]] = {}
    for row in table.rows():
        try:
            value = row.number(rate, "the hit rate")
            if value is not None and value > 1.0:
                raise RowError("the hit rate is above 1")
        except RowError as error:
            table.skip(row, str(error))
        else:
            if value is not None:
                rates.setdefault(row.text(name), []).append(value)
    return {name: sum(values) / len(values) for name, values in rates.items()}
