"""Kernel rows in the project's own schema: the op spelled out, one source a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib import resources
from typing import get_args

from calibration.kernel import KernelRow, Place, parse_specs, spec_text
from calibration.reading import Line, parse_table, require

COLUMNS = ("row", "kind", "spec", "measured_us", "place", "hardware", "setting", "source")

SHIPPED = ("kernels_a3.csv", "kernels_910b2.csv", "communication_a3.csv")


def read(lines: Sequence[Line], path: str) -> list[KernelRow]:
    """Rows of the own schema.

    Raises:
        InputError: a value that is wrong, or a row name that is there twice.
    """
    rows, seen = [], set()
    for line in lines:
        place = line.text("place")
        if place not in get_args(Place):
            raise line.fault("place", " or ".join(get_args(Place)))
        if line.text("row") in seen:
            raise line.fault("row", "every row name once")
        seen.add(line.text("row"))
        rows.append(
            KernelRow(
                row=line.text("row"),
                kind=line.text("kind"),
                setting=line.text("setting"),
                specs=parse_specs(line.text("spec"), "spec", line.where),
                measured_us=line.time_us("measured_us"),
                hardware=line.text("hardware"),
                place="isolated" if place == "isolated" else "in_network",
                source=line.text("source"),
            )
        )
    return rows


def shipped_kernels() -> list[KernelRow]:
    """All kernel rows that the package ships."""
    folder = resources.files("calibration") / "measurements"
    rows: list[KernelRow] = []
    for name in SHIPPED:
        header, lines = parse_table((folder / name).read_text("utf-8"), name)
        require(header, COLUMNS, name)
        rows += read(lines, name)
    return rows


def render(rows: Sequence[KernelRow]) -> str:
    """Rows as a CSV of the own schema; rows without a model are left out."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        if row.specs:
            writer.writerow(
                (row.row, row.kind, spec_text(row.specs), repr(row.measured_us), row.place,
                 row.hardware, row.setting, row.source)
            )  # fmt: skip
    return text.getvalue()
