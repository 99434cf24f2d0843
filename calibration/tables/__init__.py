"""Published tables, read as they are: the kind of table is told by its header."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibration.kernel import KernelRow
from calibration.measurement import COLUMNS as STEP_COLUMNS
from calibration.measurement import Measurement, measurement_of, refuse_duplicates
from calibration.reading import Line, read_table, require
from calibration.tables import communication, in_network, longcat, op_latency, own
from hardware_models.errors import InputError

Row = Measurement | KernelRow
_Reader = Callable[[Sequence[Line], str], Sequence[Row]]


def _read_steps(lines: Sequence[Line], path: str) -> list[Measurement]:
    rows = [measurement_of(line) for line in lines]
    refuse_duplicates(rows, path)
    return rows


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
    return list(read(lines, path))
