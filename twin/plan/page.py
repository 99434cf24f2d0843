"""The offline HTML page of a plan."""

from __future__ import annotations

from pathlib import Path

from twin.plan.outcome import LEFT, Outcome
from twin.report import chart
from twin.report.html import PAGE
from twin.results import write_text


def write_plan_report(path: Path, title: str, subtitle: str, outcome: Outcome) -> Path:
    """The sentences, pictures and table of a plan.

    Raises:
        InputError: the file cannot be written.
    """
    text = PAGE.get_template("plan.html.j2").render(
        title=title,
        subtitle=subtitle,
        lines=outcome.lines,
        charts=outcome.charts,
        heading=outcome.title,
        columns=outcome.columns,
        cells=outcome.cells,
        left=LEFT,
        size=chart,
    )
    return write_text(path, text)
