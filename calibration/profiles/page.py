"""The diagnosis as one offline HTML page; every name of a profile is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from twin.results import write_text

_PAGE = Environment(
    loader=PackageLoader("calibration.profiles"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_page(path: Path, title: str, payload: dict[str, Any]) -> Path:
    """Write the page of a payload of :mod:`calibration.profiles.payload`.

    Raises:
        InputError: the file cannot be written.
    """
    text = _PAGE.get_template("diagnosis.html.j2").render(title=title, found=payload)
    return write_text(path, text)
