"""Measurements: published latencies in the project's own schema, one row each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from calibration.reading import Line, parse_table, require
from hardware_models.errors import InputError

SHIPPED = ("longcat_ops_by_cores.csv", "longcat_end_to_end.csv")
END_TO_END = "end_to_end"

# A decode step of a deployed model takes milliseconds: a smaller number is in another unit.
_TPOT_US = (500.0, 1e6)

COLUMNS = (
    "row", "kind", "op", "schedule", "afd", "global_batch", "kv_tokens", "dies", "next_n",
    "measured_us", "hardware", "cann", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured latency and the setting it was measured in.

    ``op`` is the layer op's last name (``prolog``), or ``tpot`` for an end-to-end row.
    ``schedule`` names the shipped schedule that ran; batch, KV length, dies and next_n are
    put into it.  With ``afd`` half of the dies hold the MoE.  ``cores`` are the (cube, vector)
    cores of the main stream where they differ from the schedule's, ``quantisation`` that of
    the deployment.  A row that no step can stand for has a ``reason``.
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
    cores: tuple[int, int] | None = None
    quantisation: str = "w8a8"
    reason: str = ""

    @property
    def setting(self) -> str:
        """The setting in one line."""
        cores = f", c{self.cores[0]}v{self.cores[1]}" if self.cores else ""
        quantisation = "" if self.quantisation == "w8a8" else f", {self.quantisation}"
        return (
            f"{self.schedule} batch {self.global_batch} on {self.dies} dies, "
            f"KV {self.kv_tokens}, next_n {self.next_n}{cores}{quantisation}"
        )


def shipped_measurements() -> list[Measurement]:
    """All rows that the package ships, in file order."""
    folder = resources.files("calibration") / "measurements"
    rows: list[Measurement] = []
    for name in SHIPPED:
        rows += parse_measurements((folder / name).read_text("utf-8"), name)
    return rows


def parse_measurements(text: str, source: str) -> list[Measurement]:
    """Rows of a CSV in the project's schema of steps.

    Raises:
        InputError: a missing column, no row, a value that is no number or not positive or in
            another unit, a duplicate row name; names file, line and column.
    """
    header, lines = parse_table(text, source)
    require(header, COLUMNS, source)
    rows = [measurement_of(line) for line in lines]
    refuse_duplicates(rows, source)
    return rows


def measurement_of(line: Line) -> Measurement:
    """One line of the schema.

    Raises:
        InputError: a value is wrong.
    """
    if line.text("afd") not in ("yes", "no"):
        raise line.fault("afd", "yes or no")
    next_n = line.text("next_n")
    if next_n not in ("0", "1", "2"):
        raise line.fault("next_n", "0, 1 or 2")
    kind = line.text("kind")
    if kind == END_TO_END:
        measured_us = line.number_of("measured_us", *_TPOT_US, "us")
    else:
        measured_us = line.time_us("measured_us")
    return Measurement(
        row=line.text("row"),
        kind=kind,
        op=line.text("op"),
        schedule=line.text("schedule"),
        afd=line.text("afd") == "yes",
        global_batch=line.integer("global_batch"),
        kv_tokens=line.integer("kv_tokens"),
        dies=line.integer("dies"),
        next_n=int(next_n),
        measured_us=measured_us,
        hardware=line.text("hardware"),
        cann=line.text("cann"),
        source=line.text("source"),
    )


def refuse_duplicates(rows: Iterable[Measurement], source: str) -> None:
    """Refuse a row name that is there twice.

    Raises:
        InputError: names it.
    """
    seen: set[str] = set()
    for row in rows:
        if row.row in seen:
            raise InputError("row", row.row, "every row name once", source)
        seen.add(row.row)
