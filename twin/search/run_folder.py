"""A run folder that another search used before: its schedules do not stay beside the new ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hardware_models.errors import InputError

SCHEDULES = "schedules"
"""The folder of the listed schedules in a run folder."""
_OURS = re.compile(r"(candidate|baseline)-\d+\.yaml")


def remove_others(run_folder: Path, listed: Sequence[str]) -> None:
    """Remove the schedules that a search writes, but for those ``listed`` (paths in the folder).

    Files of other names stay.

    Raises:
        InputError: a file cannot be removed.
    """
    kept = {run_folder / path for path in listed}
    for path in sorted((run_folder / SCHEDULES).glob("*.yaml")):
        if path in kept or not _OURS.fullmatch(path.name):
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            allowed = f"a file that can be removed ({error.strerror})"
            raise InputError("output", str(path), allowed) from None
