"""Templates of offline HTML pages: names are escaped, what is missing is an error."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates_of(package: str) -> Environment:
    """The folder ``templates`` of a package."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
