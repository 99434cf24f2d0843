"""`python -m runtime_npu.convert`: a bf16 checkpoint as W8A8, and how far it is from the original.

A run that was stopped goes on where it ended.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hardware_models.errors import InputError
from runtime_npu.packages import PACKAGES, require_packages
from twin.cli import run as run_command
from twin.results import write_result, write_timing

if TYPE_CHECKING:
    from runtime_npu.conversion import Conversion, TensorError

COMMAND = "runtime_npu.convert"
GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """What the command takes; see ``--help``."""

    checkpoint: str | None
    into: str | None
    seed: int


def main(options: ConvertOptions, folder: Path) -> None:
    """Convert, print and write the result files.

    Raises:
        InputError: a key is missing or wrong, or the checkpoint is.
        MachineError: torch or safetensors is missing.
    """
    start = time.perf_counter()
    require_packages()
    # Only now: --help and the checks above must work without torch.
    from runtime_npu.conversion import convert  # noqa: PLC0415

    if options.checkpoint is None or options.into is None:
        key = "checkpoint" if options.checkpoint is None else "into"
        raise InputError(key, None, "the path of a folder")
    with _progress() as progress:
        result = convert(Path(options.checkpoint), Path(options.into), progress)
    console = Console(soft_wrap=True, highlight=False)
    console.print(_table(result))
    console.print(
        f"{result.files} files ({result.kept} kept from an earlier run), "
        f"{result.source_bytes / GIB:.3f} GiB to {result.bytes / GIB:.3f} GiB in {options.into}"
    )
    write_result(folder, COMMAND, options.seed, _payload(result), packages=PACKAGES)
    write_timing(folder, time.perf_counter() - start, {"kept_files": result.kept})
    console.print(f"wrote {folder}/result.json and timing.json")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr; what it yields is called with the bytes done, and all of them."""
    columns = (TextColumn("converting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _kind(name: str) -> str:
    if name.startswith("model.mtp."):
        return "mtp"
    return "experts" if ".experts." in name else "dense"


def _groups(result: Conversion) -> Mapping[str, list[TensorError]]:
    groups: dict[str, list[TensorError]] = {"dense": [], "experts": [], "mtp": []}
    for error in result.errors:
        groups[_kind(error.name)].append(error)
    return {kind: errors for kind, errors in groups.items() if errors}


def _relative(errors: Sequence[TensorError]) -> float:
    """Of all elements of some tensors together."""
    squares = sum(error.square_sum for error in errors)
    return math.sqrt(sum(error.square_error for error in errors) / squares) if squares else 0.0


def _table(result: Conversion) -> Table:
    table = Table("tensors", "count", "error %", "worst %", "worst tensor", title="int8 weights")
    for kind, errors in _groups(result).items():
        worst = max(errors, key=lambda error: error.relative)
        numbers = (f"{_relative(errors):.3%}"[:-1], f"{worst.relative:.3%}"[:-1])
        table.add_row(kind, str(len(errors)), *numbers, worst.name)
    return table


def _payload(result: Conversion) -> Mapping[str, object]:
    """``error``: root mean square of the differences over that of the original weights."""
    return {
        "files": result.files,
        "source_bytes": result.source_bytes,
        "bytes": result.bytes,
        "quantised": len(result.errors),
        "error": {kind: _relative(errors) for kind, errors in _groups(result).items()},
        "tensors": [{"name": e.name, "error": e.relative} for e in result.errors],
    }


if __name__ == "__main__":
    sys.exit(run_command("convert", ConvertOptions, main))
