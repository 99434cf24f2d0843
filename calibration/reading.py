"""Strict reading of CSV tables: every fault is named with file, line and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hardware_models.errors import InputError

T = TypeVar("T")

# No launch on the die ends sooner than this; a smaller number is in another unit.
SHORTEST_LAUNCH_US = 0.5
LONGEST_US = 1e7


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: its fields by column, and where it stands."""

    where: str
    number: int
    fields: dict[str, str]

    def text(self, column: str) -> str:
        """The field, which must not be empty."""
        value = self.fields[column].strip()
        if not value:
            raise self.fault(column, "a value")
        return value

    def integer(self, column: str) -> int:
        """A whole number above zero."""
        text = self.text(column)
        if not text.isdigit() or int(text) == 0:
            raise self.fault(column, "a whole number above zero")
        return int(text)

    def number_of(self, column: str, low: float, high: float, unit: str) -> float:
        """A number in a range that makes sense in its unit."""
        try:
            value = float(self.text(column))
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise self.fault(column, f"a number in {unit} from {low:g} to {high:g}")
        return value

    def time_us(self, column: str) -> float:
        """A kernel's time in us: finite, positive, and no shorter than a launch takes."""
        return self.number_of(column, SHORTEST_LAUNCH_US, LONGEST_US, "us")

    def parsed(self, column: str, parse: Callable[[str], T], allowed: str) -> T:
        """The field through ``parse``; what it cannot read is this column's fault."""
        try:
            return parse(self.fields[column])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise self.fault(column, allowed) from error

    def fault(self, column: str, allowed: str) -> InputError:
        """The error of a column of this line."""
        return InputError(column, self.fields.get(column), allowed, self.where)


def read_table(path: str) -> tuple[tuple[str, ...], list[Line]]:
    """Header and lines of a CSV file.

    Raises:
        InputError: the file cannot be read, is not UTF-8, is empty, has no rows, a line with
            more or fewer fields than the header, or the same line twice.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError("measurements", path, f"a readable file ({error.strerror})") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1)
        raise InputError(
            f"byte {column + 1}", data[error.start], "UTF-8 text", f"{path}:{line}"
        ) from None
    return parse_table(text, path)


def parse_table(text: str, path: str) -> tuple[tuple[str, ...], list[Line]]:
    """As :func:`read_table`, from the file's text."""
    reader = csv.reader(io.StringIO(text), strict=True)
    lines: list[Line] = []
    seen: dict[tuple[str, ...], int] = {}
    try:
        header = tuple(next(reader, ()))
        if not any(header):
            raise InputError("header", "", "a line of column names", f"{path}:1")
        for values in reader:
            number = reader.line_num
            where = f"{path}:{number}"
            if not values:
                continue
            if len(values) != len(header):
                column = header[min(len(values), len(header) - 1)]
                raise InputError(column, f"{len(values)} fields", f"{len(header)} fields", where)
            if tuple(values) in seen:
                first = seen[tuple(values)]
                raise InputError(header[0], values[0], f"every row once (see line {first})", where)
            seen[tuple(values)] = number
            lines.append(Line(where, number, dict(zip(header, values, strict=True))))
    except csv.Error as error:
        raise InputError("line", str(error), "a CSV line", f"{path}:{reader.line_num}") from None
    if not lines:
        raise InputError(header[0], "no rows", "at least one row", f"{path}:2")
    return header, lines


def require(header: Sequence[str], columns: Sequence[str], path: str) -> None:
    """Refuse a table that lacks a column.

    Raises:
        InputError: names the first missing column.
    """
    for column in columns:
        if column not in header:
            raise InputError(column, "no such column", f"a column {column}", f"{path}:1")
