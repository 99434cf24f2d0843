"""Published tables, read as they are: the kind of table is told by its header."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibration.kernel import KernelRow
from calibration.measurement import COLUMNS as STEP_COLUMNS
from calibration.measurement import Measurement, measurement_of, refuse_duplicates
from calibration.reading import Line, read_table, require
from calibration.roofline import shortest_us
from calibration.tables import communication, in_network, longcat, op_latency, own
from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware, shipped_hardware

Row = Measurement | KernelRow
_Reader = Callable[[Sequence[Line], str], Sequence[Row]]


def _read_steps(lines: Sequence[Line], path: str) -> list[Measurement]:
    rows = [measurement_of(line) for line in lines]
    refuse_duplicates(rows, path)
    return rows


# Columns that hold a table's times in us.
_TIMES = ("mean_us", "baseline_perf_us", "production_profiler_us", "bench_us", "latency_us",
          "measured_us")  # fmt: skip

# By the columns that a reader needs; columns that no other table has come first, and the table
# with most of a header's columns is the one meant.
_READERS: tuple[tuple[tuple[str, ...], _Reader], ...] = (
    (in_network.COLUMNS, in_network.read),
    (op_latency.COLUMNS, op_latency.read),
    (communication.HCCL_COLUMNS, communication.read_hccl),
    (communication.DEEPEP_COLUMNS, communication.read_deepep),
    (longcat.CORES_COLUMNS, longcat.read_cores),
    (longcat.END_TO_END_COLUMNS, longcat.read_end_to_end),
    (own.COLUMNS, own.read),
    (STEP_COLUMNS, _read_steps),
)


def load_rows(path: str) -> list[Row]:
    """The rows of a table of any known kind.

    Raises:
        InputError: no known table has such columns, a column is missing, or a value is wrong;
            names file, line and column.
    """
    header, lines = read_table(path)
    shares = [len(set(header) & set(columns)) / len(columns) for columns, _ in _READERS]
    best = max(range(len(shares)), key=shares.__getitem__)
    if shares[best] < 0.5:
        known = "; ".join(",".join(columns) for columns, _ in _READERS)
        raise InputError("header", ",".join(header), f"the columns of one of: {known}", f"{path}:1")
    columns, read = _READERS[best]
    require(header, columns, path)
    rows = list(read(lines, path))
    _refuse_other_units(lines, rows)
    return rows


def _refuse_other_units(lines: Sequence[Line], rows: Sequence[Row]) -> None:
    """Refuse a time that is far below what the row's bytes and MACs take.

    Raises:
        InputError: names file, line and column.
    """
    for line, row in zip(lines, rows, strict=True):
        column = next((name for name in _TIMES if line.fields.get(name, "").strip()), None)
        if column is None or not isinstance(row, KernelRow) or not row.specs:
            continue
        if row.hardware not in shipped_hardware():
            continue
        shortest = shortest_us(row, load_hardware(row.hardware))
        if row.measured_us < shortest:
            raise line.fault(column, f"a time in us, of which its bytes and MACs take {shortest:g}")
