"""Profiler CSVs by column name: a row that cannot be trusted is skipped and counted.

Profilers write one row a physical line, so every line is parsed on its own: a broken quote
spoils its row and no other.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from calibration.profiles.shown import shown
from calibration.profiles.skipped import Skips
from hardware_models.errors import InputError

LONGEST_LINE_BYTES = 1 << 20
"""A longer line is no row of a profiler; the longest shape lists have some 20 KB."""

LONGEST_US = 86_400e6
"""One day: no kernel and no wait of a profile is longer."""

_LATEST_US = Decimal(10) ** 17
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?|\.[0-9]+")
_ABSENT = ("", "N/A", "NA", "NULL", "None")


class RowError(Exception):
    """A row that is left out, with the reason as the message."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its line and its fields."""

    line: int
    fields: list[str]

    def text(self, index: int | None) -> str:
        """The field without blanks; empty where the table has no such column or no value."""
        if index is None:
            return ""
        value = self.fields[index].strip()
        return "" if value in _ABSENT else value

    def time_us(self, index: int | None, what: str) -> float:
        """A duration in us from 0 to a day.

        Raises:
            RowError: it is anything else.
        """
        value = self.number(index, what)
        if value is None:
            raise RowError(f"{what} is missing")
        if value > LONGEST_US:
            raise RowError(f"{what} is longer than a day")
        return value

    def moment_us(self, index: int | None, what: str) -> Decimal:
        """A time of day in us, all its digits kept.

        Raises:
            RowError: it is missing, negative or no number.
        """
        text = self._number_text(index, what)
        if text is None:
            raise RowError(f"{what} is missing")
        value = Decimal(text)
        if value > _LATEST_US:
            raise RowError(f"{what} is beyond any clock")
        return value

    def number(self, index: int | None, what: str) -> float | None:
        """A number from 0, or None where there is none.

        Raises:
            RowError: it is negative, infinite or no number.
        """
        text = self._number_text(index, what)
        if text is None:
            return None
        value = float(text)
        if value == float("inf"):
            raise RowError(f"{what} is infinite")
        return value

    def count(self, index: int | None, what: str, most: int) -> int | None:
        """A whole number from 0 to ``most``, or None where there is none.

        Raises:
            RowError: it is anything else.
        """
        value = self.number(index, what)
        if value is None:
            return None
        if value > most or value != int(value):
            raise RowError(f"{what} is no whole number from 0 to {most}")
        return int(value)

    def _number_text(self, index: int | None, what: str) -> str | None:
        text = self.text(index)
        if not text:
            return None
        if not _NUMBER.fullmatch(text):
            raise RowError(f"{what} is negative" if text[0] == "-" else f"{what} is no number")
        return text


class ProfileTable:
    """A CSV file, read row by row; columns are found by any of their names."""

    def __init__(self, path: Path, skips: Skips) -> None:
        self._path = path
        self._skips = skips
        self._lines = _lines(path, skips)
        number, first = next(self._lines, (1, ""))
        if first.lstrip().startswith(("{", "[")):
            allowed = "a CSV header: this is JSON, no kernel_details.csv and no other table"
            raise InputError("header", shown(first), allowed, f"{path}:{number}")
        try:
            self.header = [name.strip() for name in next(csv.reader([first], strict=True), [])]
        except csv.Error as error:
            raise InputError("header", str(error), "a CSV header", f"{path}:{number}") from None
        if not any(self.header):
            raise InputError("header", "nothing", "a CSV header", f"{path}:1")
        twice = {name for name in self.header if name and self.header.count(name) > 1}
        if twice:
            named = shown(", ".join(sorted(twice)))
            raise InputError("header", named, "every column once", f"{path}:1")

    def column(self, *names: str) -> int | None:
        """The index of the first of these columns that the table has."""
        return next((self.header.index(name) for name in names if name in self.header), None)

    def needed(self, *names: str) -> int:
        """As :meth:`column`, of a column that must be there.

        Raises:
            InputError: it is not.
        """
        index = self.column(*names)
        if index is None:
            raise InputError(
                "header", "no such column", f"a column {' or '.join(names)}", f"{self._path}:1"
            )
        return index

    def rows(self) -> Iterator[Row]:
        """Every line that parses and has as many fields as the header."""
        for number, line in self._lines:
            try:
                fields = next(csv.reader([line], strict=True), [])
            except csv.Error as error:
                self._skips.add(self._path, number, f"no CSV line: {error}")
                continue
            if len(fields) != len(self.header):
                self._skips.add(self._path, number, "not as many fields as the header")
            else:
                yield Row(number, fields)

    def skip(self, row: Row, reason: str) -> None:
        """Count a row that its reader could not use."""
        self._skips.add(self._path, row.line, reason)


def _lines(path: Path, skips: Skips) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, ends removed; blank ones are passed over.

    Bytes that are no UTF-8 are kept escaped: a name may be in another encoding, a number not.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LONGEST_LINE_BYTES + 1):
                number += 1
                if len(raw) > LONGEST_LINE_BYTES and not raw.endswith(b"\n"):
                    skips.add(path, number, f"longer than {LONGEST_LINE_BYTES} bytes")
                    while raw and not raw.endswith(b"\n"):
                        raw = file.readline(LONGEST_LINE_BYTES)
                elif number > 1 and not raw.endswith(b"\n"):
                    skips.add(path, number, "cut off: no line end")
                elif raw.strip():
                    encoding = "utf-8-sig" if number == 1 else "utf-8"
                    yield number, raw.decode(encoding, "backslashreplace").rstrip("\r\n")
    except OSError as error:
        raise InputError("profile", str(path), f"a readable file ({error.strerror})") from None


def moments_from(moments: Sequence[Decimal]) -> tuple[int, list[float]]:
    """Times of day as floats from the whole us at or before the earliest, which is returned.

    A float holds a time of day in us to a quarter us only; from a near origin it is exact.
    """
    origin = int(min(moments, default=Decimal(0)))
    return origin, [float(moment - origin) for moment in moments]
