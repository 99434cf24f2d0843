"""What a scenario hands back: the keys of its result, its table and its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from twin.report.chart import Chart

LEFT = ("layout", "schedule", "stops the next", "verdict", "why")
"""Columns of text; all others are numbers."""


@dataclass(frozen=True)
class Outcome:
    """``lines`` are the sentences above the table; ``nothing`` says why no row has an answer."""

    payload: Mapping[str, object]
    title: str
    lines: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    charts: Sequence[Chart]
    nothing: str | None

    @property
    def table(self) -> Table:
        """The cells for the terminal."""
        table = Table(title=self.title)
        for name in self.columns:
            table.add_column(name, justify="left" if name in LEFT else "right")
        for line in self.cells:
            table.add_row(*line)
        return table
