"""``calibration.compare sealed=FILE``: inside or outside, how far off, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibration import compare
from runtime_npu.random_checkpoint import config_of
from twin import simulate
from twin.cli import run
from twin.models import load_model
from twin.sealed import SEALED, read_sealed


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sealed")
    arguments = ["schedule=recipe_colocated", "seal=true", "draws=4", f"output={folder}"]
    arguments.append(f"export={folder / 'profile'}")
    assert run("simulate", simulate.SimulateConfig, simulate.main, arguments) == 0
    return folder / SEALED


def compared(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run("compare", compare.CompareConfig, compare.main, [*arguments, f"output={folder}"])
    path = folder / "result.json"
    return code, json.loads(path.read_text("utf-8")) if code == 0 else {}


def test_a_step_is_held_against_the_interval(sealed: Path, tmp_path: Path) -> None:
    seal = read_sealed(sealed)
    per_step = seal.step_us / seal.latency_us
    assert per_step > 2
    for us, inside in (
        (seal.low_us * (1 + 1e-9), True),
        (seal.high_us * (1 - 1e-9), True),
        (seal.low_us * 0.99, False),
        (seal.high_us * 1.01, False),
    ):
        for key, ms in (("tpot_ms", us / 1e3), ("step_ms", us / 1e3 * per_step)):
            arguments = (f"sealed={sealed}", f"measured.{key}={ms}", f"sealed_hash={seal.hash}")
            code, found = compared(tmp_path, *arguments)
            assert code == 0
            (row,) = found["rows"]
            assert row["inside"] is found["inside"] is inside
            assert row["error"] == pytest.approx(seal.latency_us / us - 1)
            assert row["measured_ms"] == pytest.approx(us / 1e3)
    assert found["of"] == "tpot_ms"
    assert found["sealed_at"] == seal.sealed_at


def test_an_ascend_profile_is_a_measurement(
    sealed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = compared(tmp_path, f"sealed={sealed}", f"profiles={sealed.parent / 'profile'}")
    assert code == 0
    assert found["rows"][0]["error"] == pytest.approx(0, abs=0.001)
    assert found["inside"] is True
    assert "no measurement" in capsys.readouterr().out


def test_the_first_digits_of_the_hash_are_enough(
    sealed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read_sealed(sealed).hash
    other = ("0" if whole[7] != "0" else "1") + whole[8:]
    for given, code in (
        (whole[:8], 0),
        (whole[:20].upper(), 0),
        (whole[:7], 2),
        (whole[:7] + other, 2),
        (whole + "0", 2),
        ("not a hash", 2),
    ):
        arguments = (f"sealed={sealed}", "measured.step_ms=25", f"sealed_hash='{given}'")
        assert compared(tmp_path, *arguments)[0] == code, given
        error = capsys.readouterr().err
        assert ("sealed_hash" in error) is (code == 2)
        assert ("first 8 hex digits" in error) is (code == 2 and given != whole[:7] + other)


def test_an_altered_file_is_refused_by_name(
    sealed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(sealed.read_text("utf-8"))
    whole["interval"]["high_ms"] *= 2
    (tmp_path / SEALED).write_text(json.dumps(whole), "utf-8")
    assert compared(tmp_path, f"sealed={tmp_path / SEALED}", "measured.step_ms=25")[0] == 2
    error = capsys.readouterr().err
    assert "interval" in error
    assert "altered" in error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["sealed={}"], "measured"),
        (["sealed={}", "measured.step_ms=1", "measured.tpot_ms=1"], "measured"),
        (["sealed={}", "measured.ttft_ms=1"], "measured.ttft_ms"),
        (["sealed={}", "measured.step_ms=0"], "measured.step_ms"),
        (["sealed={}", "profiles=nowhere"], "nowhere"),
        (["sealed={}", "measured.step_ms=1", "measurements=x.csv"], "measurements"),
        (["sealed={}", "measured.step_ms=1", "sealed_hash=00"], "sealed_hash"),
        (["sealed={}", "measured.step_ms=1", "hardware=cpu"], "hardware.die"),
        (["sealed={}", "measured.step_ms=1", "+hardware.values.sdma_gbps=1"], "hardware.values"),
        (["sealed={}", "measured.step_ms=1", "draws=8"], "draws: got 8"),
        (["sealed={}", "measured.step_ms=1", "seed=1"], "seed: got 1"),
        (["draws=-1"], "draws: got -1"),
        (["seed=-1"], "seed: got -1"),
        (["measured.step_ms=1"], "measured.step_ms"),
        (["sealed_hash=00"], "sealed_hash"),
        (["sealed=nowhere.json", "measured.step_ms=1"], "nowhere.json"),
    ],
)
def test_wrong_keys_and_those_that_do_not_go_together_are_named(
    arguments: list[str],
    named: str,
    sealed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [argument.format(sealed) for argument in arguments]
    assert compared(tmp_path, *given)[0] == 2
    assert named in capsys.readouterr().err


def test_a_run_of_another_schedule_is_refused_with_what_differs(
    sealed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "tiny_colocated"
    folder = tmp_path / "runs" / "one" / "profile"
    simulated = tmp_path / "simulated"
    arguments = [f"schedule={other}", "draws=0", f"output={simulated}"]
    arguments.append(f"export={simulated / 'profile'}")
    assert run("simulate", simulate.SimulateConfig, simulate.main, arguments) == 0
    (simulated / "profile").rename(_made(folder.parent) / "profile")
    schedule = json.loads(sealed.read_text("utf-8"))["schedule"]
    (folder / "schedule.yaml").write_text(
        schedule.replace("global_batch: 512", "global_batch: 256"), "utf-8"
    )
    table = next(folder.rglob("kernel_details.csv"))
    mark = {"step_us": 1000, "all_steps_us": 1000, "running_share": 1}
    (table.parent / "measured.json").write_text(json.dumps(mark), "utf-8")
    code, _ = compared(tmp_path, f"sealed={sealed}", f"profiles={tmp_path / 'runs'}")
    assert code == 2
    assert "workload.global_batch" in capsys.readouterr().err
    # A run names its checkpoint's config.json: another name of the same model.
    config = tmp_path / "config.json"
    config.write_text(json.dumps(config_of(load_model("longcat-flash-560b"), "bfloat16")), "utf-8")
    schedule = schedule.replace("model: longcat-flash-560b", f"model: {config}")
    (folder / "schedule.yaml").write_text(schedule, "utf-8")
    code, found = compared(tmp_path, f"sealed={sealed}", f"profiles={tmp_path / 'runs'}")
    assert code == 0
    seal = read_sealed(sealed)
    assert found["rows"][0]["source"] == "one"
    assert found["rows"][0]["error"] == pytest.approx(seal.step_us / 1000 - 1)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
