"""The package: what an installed copy holds, and that planning never imports torch."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMANDS = [
    "twin.search",
    "twin.plan",
    "twin.simulate",
    "twin.launch",
    "calibration.compare",
    "calibration.fit",
    "calibration.diagnose",
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_data_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "scenarios/search.yaml",
        "scenarios/plan.yaml",
        "scenarios/run.yaml",
        "scenarios/convert.yaml",
        "scenarios/launch_export.yaml",
        "scenarios/scenario/afd.yaml",
        "scenarios/schedules/recipe_afd.yaml",
        "hardware_models/dies/a3-752t.yaml",
        "calibration/measurements/longcat_end_to_end.csv",
        "calibration/priors/a3-752t.steps.yaml",
        "twin/report/templates/report.html.j2",
        "twin/report/templates/plan.html.j2",
        "twin/report/templates/style.css.j2",
        "calibration/profiles/templates/diagnosis.html.j2",
        "scenarios/diagnose.yaml",
        "twin/py.typed",
    ):
        assert needed in names
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name]


@pytest.mark.parametrize(
    "module", [*COMMANDS, "runtime_npu.run", "runtime_npu.doctor", "runtime_npu.dryrun"]
)
def test_help_works_from_anywhere_and_lists_the_keys(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert f"python -m {module}" in done.stdout
    assert "output" in done.stdout
    assert "Exit codes" in done.stdout
    assert not list(tmp_path.iterdir())


def test_planning_never_imports_torch() -> None:
    modules = [
        "twin.search.__main__",
        "twin.plan.__main__",
        "twin.simulate",
        "twin.launch.__main__",
        "calibration.compare",
        "calibration.fit",
        "calibration.diagnose",
        "runtime_npu.run",
        "runtime_npu.doctor",
        "runtime_npu.dryrun",
    ]
    code = (
        f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_from_another_folder_writes_only_its_run_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "twin.simulate", "schedule=tiny_colocated", "draws=0"]
    subprocess.run([*command, "output=here"], cwd=tmp_path, check=True, capture_output=True)
    assert [p.name for p in tmp_path.iterdir()] == ["here"]
    assert {p.name for p in (tmp_path / "here").iterdir()} == {
        "result.json",
        "timing.json",
        "trace.json",
        "report.html",
    }


def test_modules_of_the_tests_have_names_of_their_own() -> None:
    """pytest imports them by their last name: two alike stop the whole run at collection."""
    modules = [p.stem for p in Path(__file__).parent.rglob("*.py")]
    shared = {"conftest", "__init__"}
    assert sorted(m for m in set(modules) - shared if modules.count(m) > 1) == []
