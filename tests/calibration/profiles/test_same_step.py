"""A profile is a measurement of a sealed schedule only where its kernels are that schedule's."""

from __future__ import annotations

from pathlib import Path

import pytest
from profile_files import collective, kernel, rank_folder

from calibration.compare import CompareConfig, main
from calibration.profiles.profile import read_profile
from calibration.profiles.same_step import launches_that_differ
from hardware_models.hardware import load_hardware
from twin.cli import run
from twin.engine.compiled import simulate
from twin.graph.build import build_step_graph
from twin.models import load_model
from twin.report.ascend import write_ascend
from twin.schedule_io import load_schedule
from twin.sealed import SEALED
from twin.simulate import SimulateConfig
from twin.simulate import main as simulate_main


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sealed")
    arguments = ["schedule=recipe_colocated", "seal=true", "draws=2", f"output={folder}"]
    arguments.append(f"export={folder / 'profile'}")
    assert run("simulate", SimulateConfig, simulate_main, arguments) == 0
    return folder / SEALED


def compare(folder: Path, *arguments: str) -> int:
    return run("compare", CompareConfig, main, [*arguments, f"output={folder}"])


def test_an_ascend_profile_of_something_else_is_refused_with_what_differs(
    sealed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = [kernel(10.0 * n, 5, "MatMulV3") for n in range(9)]
    rank_folder(tmp_path / "training", 3, [*training, collective(200, 30)])
    assert compare(tmp_path, f"sealed={sealed}", f"profiles={tmp_path / 'training'}") == 2
    error = capsys.readouterr().err
    for said in ("profiles", "rank 3", "attention 0 (58)", "dispatch 0 (28)", "quant_matmul 0"):
        assert said in error
    assert "collective" not in error.partition("rank 3")[2]
    # The same schedule with one die's table cut in half: layers are missing.
    table = next((sealed.parent / "profile").rglob("kernel_details.csv"))
    lines = table.read_text("utf-8").splitlines(keepends=True)
    half = tmp_path / "half" / "kernel_details.csv"
    half.parent.mkdir()
    half.write_text("".join(lines[: len(lines) // 2]), "utf-8")
    assert compare(tmp_path, f"sealed={sealed}", f"profiles={half}") == 2
    error = capsys.readouterr().err
    assert "(58)" in error
    assert "attention 0" not in error


@pytest.mark.parametrize("name", ["recipe_afd", "recipe_prefill", "tiny_colocated"])
def test_an_export_ran_its_own_step_and_no_other(name: str, tmp_path: Path) -> None:
    schedule = load_schedule(name)
    hardware = load_hardware(schedule.deployment.hardware)
    graphs = [
        build_step_graph(schedule, load_model(schedule.model), hardware, layers=layers)
        for layers in (1, 2)
    ]
    write_ascend(tmp_path / "p", graphs[0], simulate(graphs[0]), {"schedule": name})
    for rank in read_profile(tmp_path / "p"):
        assert not launches_that_differ(rank, graphs[0])
        (first, *_) = launches_that_differ(rank, graphs[1])
        assert first
