"""The documents name files, commands and schedules that exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
_PATH = re.compile(r"[\w.*-]*(?:/[\w.*-]*)+|[\w*-]+\.py")
"""What is taken for a path: something with a slash, or a module."""


def text_of(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def missing(line: str) -> list[str]:
    """Names of paths that do not exist; a short one counts from a folder named before it."""
    folders, found = [ROOT], []
    for name in re.findall(r"`([^` ]+)`", line):
        if not _PATH.fullmatch(name):
            continue
        there = [path for folder in folders for path in folder.glob(name.rstrip("/"))]
        if not there:
            found.append(name)
        folders += [folder for path in there for folder in (path, path.parent) if folder.is_dir()]
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_exist(document: str) -> None:
    lines = text_of(document).splitlines()
    assert [name for line in lines for name in missing(line)] == []


def test_a_file_that_is_not_there_is_found() -> None:
    assert missing("`twin/graph/blocks.py`, `build.py`, `twin/validate*`") == []
    assert missing("`twin/graph/blocks.py`, `launch.py`, `twin/none*`") == [
        "launch.py",
        "twin/none*",
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_commands_exist(document: str) -> None:
    for module in re.findall(r"python -m ([\w.]+\w)", text_of(document)):
        spec = find_spec(module)
        assert spec is not None, module
        is_package = spec.submodule_search_locations is not None
        assert not is_package or find_spec(f"{module}.__main__") is not None, module


def test_shipped_schedules_are_the_named_ones() -> None:
    (named,) = re.findall(r"Shipped schedules: (.*?)\n\n", text_of("README.md"), re.DOTALL)
    shipped = {path.stem for path in (ROOT / "scenarios" / "schedules").glob("*.yaml")}
    assert set(re.findall(r"`(\w+)`", named)) == shipped
