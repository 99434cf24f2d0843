"""What a reader left out: counted by reason, with the first place of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """Rows of one file left out for one reason: how many, and the line of the first."""

    path: str
    reason: str
    first_line: int
    count: int

    def __str__(self) -> str:
        return f"{self.path}:{self.first_line}: {self.reason} ({self.count} skipped)"


@dataclass(slots=True)
class Skips:
    """Collects skipped rows while files are read."""

    _counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, path: Path, line: int, reason: str) -> None:
        """Count one skipped row."""
        entry = self._counts.setdefault((str(path), reason), [line, 0])
        entry[1] += 1

    def rows(self) -> tuple[SkippedRows, ...]:
        """All reasons in the order in which they were met."""
        return tuple(
            SkippedRows(path, reason, line, count)
            for (path, reason), (line, count) in self._counts.items()
        )


def total(rows: Iterable[SkippedRows]) -> int:
    """Rows left out in all."""
    return sum(row.count for row in rows)
