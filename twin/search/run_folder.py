"""A run folder that another search used before: what that wrote does not stay beside the new."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hardware_models.errors import InputError

SCHEDULES = "schedules"
"""The folder of the listed schedules in a run folder."""
_OURS = re.compile(
    r"schedule\.yaml|report\.html|trace\.json|timing\.json|points\.parquet"
    rf"|{SCHEDULES}/(candidate|baseline)-\d+\.yaml"
)


def remove_others(run_folder: Path, listed: Sequence[str]) -> None:
    """Remove what a search writes beside its result, but for files ``listed`` (by their paths).

    Files of other names stay, and so do shards, which belong to no one search, and seals.

    Raises:
        InputError: a file cannot be removed.
    """
    for path in sorted([*run_folder.glob("*"), *(run_folder / SCHEDULES).glob("*")]):
        name = path.relative_to(run_folder).as_posix()
        if name in listed or not _OURS.fullmatch(name):
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            allowed = f"a file that can be removed ({error.strerror})"
            raise InputError("output", str(path), allowed) from None
