"""Measurements: published latencies in the project's own schema, one row each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from hardware_models.errors import InputError

SHIPPED = ("longcat_ops_by_cores.csv", "longcat_end_to_end.csv")
END_TO_END = "end_to_end"

_COLUMNS = (
    "row", "kind", "op", "schedule", "afd", "global_batch", "kv_tokens", "dies", "next_n",
    "measured_us", "hardware", "cann", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured latency and the setting it was measured in.

    ``op`` is the layer op's last name (``prolog``), or ``tpot`` for an end-to-end row.
    ``schedule`` names the shipped schedule that ran; batch, KV length, dies and next_n are
    put into it.  With ``afd`` half of the dies hold the MoE.
    """

    row: str
    kind: str
    op: str
    schedule: str
    afd: bool
    global_batch: int
    kv_tokens: int
    dies: int
    next_n: int
    measured_us: float
    hardware: str
    cann: str
    source: str

    @property
    def setting(self) -> str:
        """The setting in one line."""
        return (
            f"{self.schedule} batch {self.global_batch} on {self.dies} dies, "
            f"KV {self.kv_tokens}, next_n {self.next_n}"
        )


def shipped_measurements() -> list[Measurement]:
    """All rows that the package ships, in file order."""
    folder = resources.files("calibration") / "measurements"
    rows: list[Measurement] = []
    for name in SHIPPED:
        rows += parse_measurements((folder / name).read_text("utf-8"), name)
    return rows


def parse_measurements(text: str, source: str) -> list[Measurement]:
    """Rows of a CSV in the project's schema.

    Raises:
        InputError: a missing or unknown column, no row, a value that is no number or not
            positive, a duplicate row name; names file, line and column.
    """
    reader = csv.DictReader(io.StringIO(text))
    found = tuple(reader.fieldnames or ())
    if set(found) != set(_COLUMNS):
        raise InputError("columns", ", ".join(found), ", ".join(_COLUMNS), source)
    rows = [_parse_row(fields, f"{source}:{line}") for line, fields in enumerate(reader, start=2)]
    if not rows:
        raise InputError("rows", 0, "at least one measurement", source)
    _refuse_duplicates(rows, source)
    return rows


def _parse_row(fields: dict[str, str], where: str) -> Measurement:
    def integer(column: str) -> int:
        text = fields[column] or ""
        if not text.isdigit() or (column != "next_n" and int(text) == 0):
            raise InputError(column, text, "a positive whole number", where)
        return int(text)

    try:
        measured_us = float(fields["measured_us"])
    except (TypeError, ValueError):
        measured_us = -1.0
    if not 0 < measured_us < float("inf"):
        raise InputError("measured_us", fields["measured_us"], "a positive time in us", where)
    if fields["afd"] not in ("yes", "no"):
        raise InputError("afd", fields["afd"], "yes or no", where)
    return Measurement(
        row=fields["row"],
        kind=fields["kind"],
        op=fields["op"],
        schedule=fields["schedule"],
        afd=fields["afd"] == "yes",
        global_batch=integer("global_batch"),
        kv_tokens=integer("kv_tokens"),
        dies=integer("dies"),
        next_n=integer("next_n"),
        measured_us=measured_us,
        hardware=fields["hardware"],
        cann=fields["cann"],
        source=fields["source"],
    )


def _refuse_duplicates(rows: Iterable[Measurement], source: str) -> None:
    seen: set[str] = set()
    for row in rows:
        if row.row in seen:
            raise InputError("row", row.row, "every row name once", source)
        seen.add(row.row)
