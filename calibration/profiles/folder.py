"""Finding the files of a profile: one file, one rank's folder, or a cluster's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from calibration.profiles.json_values import load_json
from hardware_models.errors import InputError

OUTPUT = "ASCEND_PROFILER_OUTPUT"
KERNELS = "kernel_details.csv"
TRACE = "trace_view.json"
_SUMMARY = re.compile(r"op_summary.*\.csv")
_INFO = re.compile(r"profiler_info_(\d{1,9})\.json")
_NUMBER = re.compile(r"\d{1,9}")
_INNER = (OUTPUT, "mindstudio_profiler_output", "summary")
_ALLOWED = f"a {KERNELS}, an op_summary*.csv, a rank's folder, or a folder of ranks' folders"


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank; ``kernels`` may be several slices of one run.

    ``rank`` is the number that the profiler wrote, or the place in order of names.
    """

    rank: int
    folder: Path
    kernels: tuple[Path, ...]

    def file(self, name: str) -> Path | None:
        """A file beside the kernel table, if it is there."""
        path = self.kernels[0].parent / name
        return path if path.is_file() else None


def find_ranks(path: Path) -> tuple[RankFiles, ...]:
    """The ranks below a path, in order of their numbers; links to folders are not followed.

    Raises:
        InputError: nothing of a profile is there, or two folders claim one rank.
    """
    if os.path.isfile(path):
        return (RankFiles(0, path.parent, (path,)),)
    if not os.path.isdir(path):
        raise InputError("profile", str(path), _ALLOWED)
    if tables := _tables(path):
        return (RankFiles(_rank_of(path) or 0, path, tables),)
    folders = [(folder, _tables(folder)) for folder in _folders(path)]
    found = [(folder, tables) for folder, tables in folders if tables]
    if not found:
        raise InputError("profile", str(path), _ALLOWED)
    numbers = [_rank_of(folder) for folder, _ in found]
    ranks = [
        RankFiles(place if number is None else number, folder, tables)
        for place, (number, (folder, tables)) in enumerate(zip(numbers, found, strict=True))
    ]
    _refuse_twice(ranks)
    return tuple(sorted(ranks, key=lambda files: files.rank))


def _refuse_twice(ranks: Sequence[RankFiles]) -> None:
    seen: dict[int, Path] = {}
    for files in ranks:
        if files.rank in seen:
            both = f"{seen[files.rank].name} and {files.folder.name}"
            raise InputError("rank", files.rank, "every rank once", f"{both} in a folder")
        seen[files.rank] = files.folder


def _tables(folder: Path) -> tuple[Path, ...]:
    """Kernel tables of one rank: in the folder itself or where a profiler puts them."""
    for place in (folder, *(folder / name for name in _INNER)):
        names = _names(place)
        if KERNELS in names:
            return (place / KERNELS,)
        if summaries := [name for name in names if _SUMMARY.fullmatch(name)]:
            return tuple(place / name for name in summaries)
    return ()


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return []


def _folders(path: Path) -> list[Path]:
    try:
        entries = [entry for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise InputError("profile", str(path), f"a readable folder ({error.strerror})") from None
    return sorted((Path(entry.path) for entry in entries), key=_by_number)


def _by_number(folder: Path) -> tuple[list[int], str]:
    return [int(text) for text in _NUMBER.findall(folder.name)], folder.name


def _rank_of(folder: Path) -> int | None:
    """The rank that the profiler noted beside its output."""
    for place in (folder, folder.parent):
        for name in _names(place):
            if match := _INFO.fullmatch(name):
                return int(match[1])
        if folder.name != OUTPUT:
            break
    info = folder / "profiler_info.json"
    if info.is_file():
        data = load_json(info)
        rank = data.get("rank_id") if isinstance(data, dict) else None
        if isinstance(rank, int) and rank >= 0:
            return rank
    return None
