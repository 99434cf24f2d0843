"""Profiles that `runtime_npu.run profile=true` measured: what they say beyond Ascend's files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from calibration.profiles.folder import RankFiles, find_ranks
from calibration.profiles.json_values import load_json
from calibration.profiles.mapping import Context
from calibration.profiles.profile import SIMULATED
from calibration.profiles.shown import shown
from hardware_models.errors import InputError
from twin.schedule import Schedule
from twin.schedule_io import load_schedule

PROFILE = "profile"
"""A run's own folder of what it measured."""

_MARK = "measured.json"
_MARKS = (_MARK, SIMULATED)
_SCHEDULE = "schedule.yaml"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run's name, what it ran (batch and KV length put in), and a step's wall time.

    ``step_us`` is the median over the steps that were disturbed least, ``all_steps_us`` over all;
    ``running_share`` the least share of the former, exchanges left out, in which a rank's thread
    ran: below 1 other processes had the rest.
    """

    name: str
    schedule: Schedule
    step_us: float
    all_steps_us: float
    running_share: float


def find_runs(path: Path) -> tuple[tuple[RankFiles, ...], ...]:
    """The ranks of a profile, or those of each run in a folder of run folders.

    Raises:
        InputError: nothing of a profile is there.
    """
    folders = _run_folders(path)
    if not folders:
        return (find_ranks(path),)
    return tuple(find_ranks(folder) for folder in folders)


def refuse_simulated(runs: Iterable[Sequence[RankFiles]]) -> None:
    """Refuse what the twin exported: it would teach the parameters what they already say.

    Raises:
        InputError: names the folder.
    """
    for files in (rank for run in runs for rank in run):
        if files.file(SIMULATED) is not None:
            allowed = f"measured profiles: this is a simulation (its {SIMULATED} says so)"
            raise InputError("profiles", shown(str(files.folder), 200), allowed)


def has_runs(path: Path) -> bool:
    """Whether a folder is a run folder with a measured profile, or one of such folders."""
    return bool(_run_folders(path))


def read_runs(path: Path) -> list[MeasuredRun]:
    """What the runs of a folder of run folders measured, in order of names.

    Raises:
        InputError: no such run is there, or a file of one is broken.
    """
    folders = _run_folders(path)
    if not folders:
        allowed = f"a folder of run folders, each with a folder {PROFILE} (profile=true)"
        raise InputError("profiles", str(path), allowed)
    return [_read_run(folder) for folder in folders]


def noted_context(files: RankFiles, given: Context) -> Context:
    """``given`` with the KV tokens and EP that a measured or simulated rank noted of itself.

    Raises:
        InputError: its mark is broken.
    """
    mark = next((path for name in _MARKS if (path := files.file(name))), None)
    if mark is None:
        return given
    noted = _read_mark(mark)
    return replace(
        given,
        kv_tokens=given.kv_tokens or _count(noted, "kv_tokens", mark),
        ep=given.ep or _count(noted, "ep", mark),
    )


def _run_folders(path: Path) -> list[Path]:
    """The profile folders of the run folders in ``path``, or that of the run folder itself."""
    try:
        entries = sorted(entry.path for entry in os.scandir(path) if entry.is_dir())
    except OSError:
        return []
    inner = [Path(entry) / PROFILE for entry in entries]
    return [folder for folder in (path / PROFILE, *inner) if (folder / _SCHEDULE).is_file()]


def _read_run(folder: Path) -> MeasuredRun:
    marks = [files.file(_MARK) for files in find_ranks(folder)]
    noted = [(_read_mark(mark), mark) for mark in marks if mark is not None]
    if len(noted) < len(marks):
        raise InputError("profiles", str(folder), f"a measured profile, with a {_MARK} a rank")
    first, path = noted[0]
    return MeasuredRun(
        name=folder.parent.name,
        schedule=load_schedule(str(folder / _SCHEDULE)),
        step_us=_number(first, "step_us", path),
        all_steps_us=_number(first, "all_steps_us", path),
        running_share=min(_number(data, "running_share", path) for data, path in noted),
    )


def _read_mark(path: Path) -> dict[str, object]:
    data = load_json(path)
    if not isinstance(data, dict):
        raise InputError("file", type(data).__name__, "an object", f"{path}:1")
    return data


def _number(noted: dict[str, object], key: str, path: Path) -> float:
    value = noted.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12:
        raise InputError(key, value, "a number above 0", f"{path}:1")
    return float(value)


def _count(noted: dict[str, object], key: str, path: Path) -> int:
    """A number that the mark may lack or hold as 0: not known."""
    return int(_number(noted, key, path)) if noted.get(key) else 0
