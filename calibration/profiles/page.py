"""The diagnosis as one offline HTML page; every name of a profile is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twin.report.pages import templates_of
from twin.results import write_text

_PAGE = templates_of("calibration.profiles")


def write_page(path: Path, title: str, payload: dict[str, Any]) -> Path:
    """Write the page of a payload of :mod:`calibration.profiles.payload`.

    Raises:
        InputError: the file cannot be written.
    """
    text = _PAGE.get_template("diagnosis.html.j2").render(title=title, found=payload)
    return write_text(path, text)
