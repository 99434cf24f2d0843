"""The fit to a profile: what it teaches moves, what it does not stays at the prior."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profile_files import Row, collective, kernel, rank_folder

from calibration.fit import FitConfig, main
from calibration.next_measurement import rank_candidates
from calibration.profile_fit import LEARNED, priors_of
from hardware_models.hardware import Hardware, load_hardware
from hardware_models.ops import MatMul, RowOp
from hardware_models.ops.alone import alone_us
from twin.cli import run

DIE = load_hardware("a3-752t")
SHAPES = [(rows, width) for rows in (8, 48, 200, 960) for width in (1024, 4096, 6144)]


def fit(folder: Path, *arguments: str) -> int:
    return run("fit", FitConfig, main, [*arguments, f"output={folder}"])


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


def norms(die: Hardware, launches: int = 3) -> list[Row]:
    """Norms as they would run on ``die``, the last launch of each held up by something."""
    rows: list[Row] = []
    for m, width in SHAPES:
        time_us = alone_us(RowOp("rms_norm", m, width), die)
        for number in range(launches):
            late = 9.0 if number == launches - 1 else 1.0
            shape = {"Input Shapes": f'"{m},{width};{width}"'}
            rows.append(kernel(1000.0 * len(rows), f"{time_us * late:.3f}", "RmsNorm", **shape))
    return rows


def test_what_the_profile_teaches_moves_and_the_rest_stays(tmp_path: Path) -> None:
    truth = DIE.with_values({"rms_norm_head_us": DIE["rms_norm_head_us"] * 1.3})
    rank_folder(tmp_path / "p", 0, norms(truth))
    assert fit(tmp_path / "run", f"profiles={tmp_path / 'p'}") == 0
    found = result(tmp_path / "run")
    (errors,) = found["kinds"]
    assert errors["kind"] == "rms_norm"
    assert errors["rows"] == len(SHAPES)
    assert errors["fitted"] < 0.6 * errors["prior"]
    assert errors["held_out"] < errors["prior"]
    moved = {row["name"]: row for row in found["moved"]}
    assert all(name.startswith("rms_norm_") for name in moved)
    head = moved["rms_norm_head_us"]
    assert 0.1 < head["change"] < 0.35
    assert head["range"][0] < truth["rms_norm_head_us"] < head["range"][1]
    reasons = {row["name"]: row["reason"] for row in found["stayed_prior"]}
    assert set(priors_of(DIE)) <= set(reasons) | set(moved)
    assert not set(reasons) & set(moved)
    assert "no usable launch of mla_attention" in reasons["attention_fixed_us"]
    assert "no kernel" in reasons["sdma_gbps"]
    die = load_hardware(str(tmp_path / "run" / "a3-752t.yaml"))
    assert die.fitted_shapes["rms_norm"]["rows"][1] >= 960
    (tied,) = [group for group in die.correlations if "rms_norm_head_us" in group.parameters]
    assert set(tied.parameters) <= {name for name in priors_of(DIE) if name.startswith("rms_norm")}
    for parameter in die:
        before = DIE.parameters[parameter.name]
        if parameter.name in moved:
            learned = moved[parameter.name]["learned"] >= LEARNED
            assert parameter.evidence == ("fitted" if learned else before.evidence)
            assert "12 rows" in parameter.source
            assert parameter.value == pytest.approx(moved[parameter.name]["value"], rel=1e-3)
        else:
            assert parameter == before


def test_a_profile_as_the_prior_says_changes_no_value(tmp_path: Path) -> None:
    rank_folder(tmp_path / "p", 0, norms(DIE))
    assert fit(tmp_path / "run", f"profiles={tmp_path / 'p'}") == 0
    for row in result(tmp_path / "run")["moved"]:
        assert abs(row["change"]) < 0.01
        assert row["range"][1] - row["range"][0] < row["prior_range"][1] - row["prior_range"][0]


def test_what_is_not_fitted_is_said(tmp_path: Path) -> None:
    rows = [*norms(DIE), collective(1e6, 500), kernel(2e6, 300, "Conv2D"), kernel(3e6, 0.1)]
    rank_folder(tmp_path / "p", 0, [*rows, {**kernel(4e6, 1), "Duration(us)": "-1"}])
    assert fit(tmp_path / "run", f"profiles={tmp_path / 'p'}") == 0
    found = result(tmp_path / "run")
    reasons = " | ".join(row["reason"] for row in found["left_out"])
    for said in ("Conv2D", "hcom_allReduce_", "shorter than"):
        assert said in reasons
    assert found["skipped"][0]["count"] == 1


def test_the_next_measurement_is_the_one_that_sharpens_most(tmp_path: Path) -> None:
    rank_folder(tmp_path / "p", 0, norms(DIE))
    assert fit(tmp_path / "run", f"profiles={tmp_path / 'p'}") == 0
    candidates = result(tmp_path / "run")["next_measurements"]
    widths = [row["after_us"] for row in candidates]
    assert widths == sorted(widths)
    for row in candidates:
        assert row["after_us"] <= row["before_us"]
        assert row["interval_us"][0] <= row["predicted_us"] <= row["interval_us"][1]


def test_an_uncertain_kernel_beats_a_certain_one() -> None:
    norm, product = RowOp("rms_norm", 48, 6144), MatMul(48, 6144, 6144, "bf16", "w")
    names = ("rms_norm_head_us", "matmul_hbm_gbps")
    for deviations, best in (((0.5, 0.01), "rms_norm"), ((0.01, 0.5), "matmul")):
        covariance = np.diag([deviation**2 for deviation in deviations])
        first, second = rank_candidates([norm, product], DIE, names, covariance)
        assert first.kind == best
        assert first.after_us < second.after_us <= first.before_us


def test_a_parameter_at_its_limit_is_measured_from_one_side() -> None:
    die = DIE.with_values({"matmul_efficiency": 1.0})
    product = MatMul(4096, 6144, 6144, "bf16", "w")
    (found,) = rank_candidates([product], die, ("matmul_efficiency",), np.array([[0.04]]))
    assert 0 <= found.after_us < found.before_us


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["profiles=nowhere"], "nowhere"),
        (["profiles={other}"], "kernels that are modelled"),
        (["profiles={good}", "hardware.die=a9"], "a9"),
        (["profiles={good}", "schedule=nowhere"], "nowhere"),
        (["profiles={good}", "ep=-1"], "ep"),
    ],
)
def test_wrong_input_is_exit_2_and_named(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_folder(tmp_path / "good", 0, norms(DIE))
    rank_folder(tmp_path / "other", 0, [kernel(0, 5, "Conv2D")])
    given = [x.format(good=tmp_path / "good", other=tmp_path / "other") for x in arguments]
    assert fit(tmp_path / "run", *given) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error


def test_a_simulation_is_no_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_folder(tmp_path / "p", 0, norms(DIE))
    output = rank_folder(tmp_path / "p", 1, norms(DIE))
    (output / "simulated.json").write_text('{"collectives": {}}')
    assert fit(tmp_path / "run", f"profiles={tmp_path / 'p'}") == 2
    error = capsys.readouterr().err
    for said in ("profiles", "host_1_ascend_pt", "measured profiles", "simulation"):
        assert said in error
    assert not (tmp_path / "run" / "a3-752t.yaml").exists()
