"""Command lines: exit codes, one-line errors, the run folder, and help that keeps up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import get_args

import pytest
import yaml

from calibration.compare import CompareConfig
from hardware_models.errors import InfeasibleError, InputError, MachineError
from twin.cli import FAULT, READER_LEFT, run
from twin.workload import ExpertLoad

COMMANDS = [
    "search",
    "simulate",
    "launch_export",
    "launch_import",
    "compare",
    "fit",
    "run",
    "doctor",
    "dryrun",
    "plan",
]


def command(
    folder: Path, *arguments: str, flags: Sequence[str] = (), error: BaseException | None = None
) -> int:
    def task(config: CompareConfig, run_folder: Path) -> None:
        assert run_folder.is_dir()
        (run_folder / "seed").write_text(str(config.seed))
        if error is not None:
            raise error

    return run("compare", CompareConfig, task, [*flags, f"output={folder}", *arguments])


def options(name: str) -> Mapping[str, object]:
    loaded: Mapping[str, object] = yaml.safe_load(
        (resources.files("scenarios") / f"{name}.yaml").read_text("utf-8")
    )
    return loaded


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (InputError("field", 1, "2"), 2),
        (InfeasibleError("12 GiB too much"), 3),
        (MachineError("no NPU"), 4),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("ours"), 1),
        (ValueError("ours, though Hydra raises these for flags"), 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(
    error: BaseException | None,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(tmp_path, error=error) == code
    said = capsys.readouterr().err
    assert (FAULT in said) == ("Traceback" in said) == (code == 1)
    if code in (2, 3, 4):
        assert said == f"error: {error}\n"


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("sede=1", "sede"),
        ("+sede=1", "sede"),
        ("seed=one", "seed"),
        ("seed=1.5", "seed"),
        ("~seed", "seed"),
        ("seed=[1", "[1"),
        ("seed", "seed"),
        ("seed=${nothing}", "nothing"),
        ("hardware=a9", "a3-752t"),
        ("+hardware.values.hbm_read_gbps=fast", "hbm_read_gbps"),
        ("seed=1,2", "seed"),
    ],
)
def test_wrong_overrides_are_exit_2_in_one_line_that_names_them(
    argument: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, argument) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert named in said
    assert "+sede=1" not in said or argument.startswith("+")


@pytest.mark.parametrize("flags", [["--no-such-flag"], ["--cfg", "job", "--multirun"]])
def test_wrong_flags_are_exit_2(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path / "run", *flags) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_cannot_be_made_is_exit_2_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert command(tmp_path / "file" / "run") == 2
    assert str(tmp_path / "file" / "run") in capsys.readouterr().err


@pytest.mark.parametrize(("first", "last"), [(["-m"], []), ([], ["-m"])])
def test_a_sweep_gives_every_job_a_folder_of_its_own(
    first: list[str], last: list[str], tmp_path: Path
) -> None:
    assert command(tmp_path, "seed=3,4", *last, flags=first) == 0
    assert {p.name: (p / "seed").read_text() for p in tmp_path.iterdir()} == {"0": "3", "1": "4"}


def test_the_worst_job_of_a_sweep_sets_the_exit_code(tmp_path: Path) -> None:
    assert command(tmp_path, "seed=1,one", "-m") == 2
    assert (tmp_path / "0" / "seed").exists()


@pytest.mark.parametrize("flags", [[], ["-m"]])
def test_a_command_leaves_directory_and_environment_alone(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    assert command(tmp_path / "run", flags=flags) == 0
    assert Path.cwd() == tmp_path
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert "HYDRA_FULL_ERROR" not in os.environ


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_key_and_lists_every_choice(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(config: CompareConfig, folder: Path) -> None:
        raise AssertionError("help runs nothing")

    assert run(name, CompareConfig, never, ["--help"]) == 0
    said = capsys.readouterr().out
    explained, _, _ = said.partition("== Configuration as composed")
    data = options(name)
    groups = [next(iter(item)) for item in data.get("defaults", []) if isinstance(item, dict)]
    for key in {*data, *groups} - {"defaults", "hydra"}:
        assert re.search(rf"^\s*{key}\b.* \S+ \S+", explained, re.MULTILINE), key
    for group in groups:
        for item in (resources.files("scenarios") / group.partition("@")[0]).iterdir():
            assert item.name.removesuffix(".yaml") in explained


@pytest.mark.parametrize("name", ["search", "plan"])
def test_help_gives_the_form_of_dies_and_the_expert_loads(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, CompareConfig, lambda _, __: None, ["--help"]) == 0
    explained, _, _ = capsys.readouterr().out.partition("== Configuration as composed")
    said = " ".join(explained.split())
    assert re.search(r"deployment\.dies is a list of .*\[256\]", said)
    loads = said.partition("workload.expert_load:")[2].partition("deployment ")[0]
    assert all(load in loads for load in get_args(ExpertLoad))
    assert "twin.cluster" in loads


def test_a_reader_that_leaves_is_no_fault() -> None:
    command = [sys.executable, "-m", "twin.search", "--help"]
    pipe_end, our_end = os.pipe()
    os.close(pipe_end)
    with os.fdopen(our_end, "w") as closed:
        done = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (READER_LEFT, "")
