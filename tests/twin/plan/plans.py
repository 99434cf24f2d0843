"""Small plans: the command on narrow spaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twin.cli import run
from twin.plan.__main__ import main
from twin.plan.config import PlanConfig

FEW = [
    "spaces.colocated.knobs.main_cores.levels=[12,16]",
    "spaces.colocated.knobs.main_vector_cores.levels=[32]",
    "spaces.colocated.knobs.dense.levels=[1]",
    "spaces.colocated.knobs.mla.levels=[0,1]",
    "spaces.colocated.knobs.router.levels=[1]",
    "spaces.afd.knobs.mla.levels=[0,1]",
    "spaces.afd.knobs.dense.levels=[1]",
    "spaces.afd.knobs.experts.levels=[1]",
    "spaces.afd.knobs.router.levels=[1]",
    "draws=4",
]


def plan(folder: Path, *arguments: str) -> int:
    """The exit code of a plan on the narrow spaces, in this process unless told otherwise."""
    words = [*FEW, "workers=1", *arguments]
    last = {word.partition("=")[0]: word for word in words}
    return run("plan", PlanConfig, main, [*last.values(), f"output={folder}"])


def result(folder: Path) -> dict[str, Any]:
    """The plan's result.json."""
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    return loaded


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a plan but its clock's, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "timing.json"
    }
