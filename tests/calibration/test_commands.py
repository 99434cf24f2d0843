"""The commands ``calibration.compare`` and ``calibration.fit`` end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibration import compare, fit
from calibration.tables.own import shipped_kernels
from hardware_models.hardware import load_hardware
from hardware_models.ops import Combine, Dispatch
from hardware_models.ops.alone import alone_us
from twin.cli import run

ROW_KEYS = {
    "source_row", "kind", "setting", "measured_us", "simulated_us", "low_us", "high_us",
    "error", "evidence", "status", "reason",
}  # fmt: skip
SUMMARY_KEYS = {"count", "mean_abs_error", "median_abs_error", "coverage"}


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    return loaded


def compared(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run("compare", compare.CompareConfig, compare.main, [*arguments, f"output={folder}"])
    return code, result(folder) if code == 0 else {}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one comparison of the shipped rows."""
    folder = tmp_path_factory.mktemp("compare")
    code, _ = compared(folder, "draws=1")
    assert code == 0
    return folder


def test_compare_writes_the_promised_keys(shipped: Path) -> None:
    written = result(shipped)
    assert all(set(row) >= ROW_KEYS for row in written["rows"])
    assert all(set(line) >= SUMMARY_KEYS for line in written["summary"].values())
    assert {row["status"] for row in written["rows"]} <= {"modelled", "unsupported"}
    for row in written["rows"]:
        assert row["low_us"] <= row["simulated_us"] <= row["high_us"]
        assert row["error"] == pytest.approx(row["simulated_us"] / row["measured_us"] - 1)


def test_the_same_inputs_give_the_same_bytes(shipped: Path, tmp_path: Path) -> None:
    compared(tmp_path, "draws=1")
    first, second = ((folder / "result.json").read_bytes() for folder in (shipped, tmp_path))
    assert first == second


def test_the_shipped_parameters_meet_the_in_sample_targets(shipped: Path) -> None:
    written = result(shipped)
    ops = [abs(row["error"]) for row in written["rows"] if row["kind"] != "end_to_end"]
    ends = [abs(row["error"]) for row in written["rows"] if row["kind"] == "end_to_end"]
    assert (len(ops), len(ends)) == (12, 2)
    assert sum(ops) / len(ops) <= 0.035
    assert max(ops) <= 0.12
    assert max(ends) <= 0.02
    outside = {op["name"] for op in written["outside_ops"]}
    assert {"lm_head", "sample", "mtp.0.lm_head", "mtp.1.attention.prolog"} <= outside
    assert "workload.acceptance" in {scalar["name"] for scalar in written["free_scalars"]}
    assert all(s["low"] <= s["value"] <= s["high"] for s in written["free_scalars"])


def test_single_kernels_keep_their_accuracy_with_the_parameters_of_the_steps() -> None:
    """What the steps' fit shares with kernels in network fits those, too."""
    die = load_hardware("a3-752t")
    rows = [row for row in shipped_kernels() if row.hardware == die.name]
    for kind, most in (("quant_matmul", 0.085), ("matmul", 0.06)):
        errors = [abs(r.predicted_us(die) / r.measured_us - 1) for r in rows if r.kind == kind]
        assert sum(errors) / len(errors) <= most


@pytest.mark.parametrize("op", [Dispatch, Combine])
def test_low_latency_exchanges_are_within_8_percent_and_grow_with_ep_and_tokens(
    op: type[Dispatch] | type[Combine],
) -> None:
    die = load_hardware("a3-752t")
    rows = [r for r in shipped_kernels() if r.hardware == die.name and r.kind == op.kind]
    assert len(rows) == 2
    assert all(abs(r.predicted_us(die) / r.measured_us - 1) <= 0.08 for r in rows)
    by_ep = [alone_us(op(1024, ep, 7168), die) for ep in (8, 32, 128)]
    by_tokens = [alone_us(op(8.0 * tokens, 32, 7168), die) for tokens in (16, 64, 128)]
    for times in (by_ep, by_tokens):
        assert times == sorted(set(times))


def test_left_out_rows_are_covered_and_beat_both_baselines(fitted: Path) -> None:
    written = result(fitted)
    for total in written["coverage"]:
        assert 0.7 <= total["coverage"] <= 0.9, total
    for kind in written["kinds"]:
        if kind["count"] >= 6:
            assert kind["beats_baselines"], kind["kind"]
            assert all(p["log_standard_error"] > 0 for p in kind["parameters"])


def test_the_fit_reproduces_the_shipped_parameters(fitted: Path) -> None:
    for die in ("910b2", "a3-752t", "a3-560t"):
        again, shipped = load_hardware(str(fitted / f"{die}.yaml")), load_hardware(die)
        for parameter in shipped:
            assert again[parameter.name] == pytest.approx(parameter.value, rel=0.02), parameter.name
            assert again.parameter(parameter.name).evidence == parameter.evidence, parameter.name
        assert again.fitted_shapes == shipped.fitted_shapes


def test_the_fit_names_parameters_that_the_data_cannot_tell_apart(fitted: Path) -> None:
    pairs = [set(pair["parameters"]) for pair in result(fitted)["degenerate"]]
    assert {"attention_fixed_us", "attention_cube_efficiency"} in pairs


def test_a_missing_measurement_file_is_the_users_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = compared(tmp_path, "measurements=nowhere.csv")
    assert code == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_compare_reads_kernel_rows_and_counts_what_it_cannot_model(tmp_path: Path) -> None:
    header = "op,num_dies,message_bytes,bench_us,production_profiler_us,note,source"
    table = tmp_path / "table.csv"
    table.write_text(f"{header}\nallGather,8,1024,5.4,6.4,n,s\nscan,8,1024,5.4,6.4,n,s\n", "utf-8")
    code, written = compared(tmp_path / "out", f"measurements={table}")
    assert code == 0
    assert [row["status"] for row in written["rows"]] == ["modelled", "unsupported"]
    assert (written["modelled"], written["unsupported"]) == (1, 1)
    assert "scan" in written["rows"][1]["reason"]
    assert (tmp_path / "out" / "scatter.svg").read_text("utf-8").startswith("<svg")


def test_a_shape_outside_of_the_fitted_ones_is_marked(tmp_path: Path) -> None:
    header = "op,num_dies,message_bytes,bench_us,production_profiler_us,note,source"
    table = tmp_path / "table.csv"
    table.write_text(
        f"{header}\nallGather,16,5e6,400,400,n,s\nallGather,64,1e9,9000,9000,n,s\n", "utf-8"
    )
    _, written = compared(tmp_path / "out", f"measurements={table}")
    assert [row["evidence"] for row in written["rows"]] == ["interpolated", "extrapolated"]


def test_end_to_end_rows_of_the_published_table_are_simulated(tmp_path: Path) -> None:
    header = (
        "model,quant,global_batch,seq_len,chips,next_n,afd,tpot_ms,tokens_per_s_per_chip,source"
    )
    table = tmp_path / "table.csv"
    table.write_text(
        f"{header}\nLongCat-Flash,W8A8,512,4608,64,2,no,10.37,771,s\nLongCat-Flash,W8A8,256,4608,64,2,yes,9,400,s\n"
        "LongCat-Flash,W8A8,500,4608,60,2,no,10,700,s\n",
        "utf-8",
    )
    code, written = compared(tmp_path / "out", f"measurements={table}", "draws=0")
    assert code == 0
    assert [row["status"] for row in written["rows"]] == ["modelled", "modelled", "unsupported"]
    assert abs(written["rows"][0]["error"]) <= 0.02
    assert written["rows"][1]["kind"] == "end_to_end"
    assert written["rows"][2]["reason"]


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("hardware=cpu", "hardware.die"),
        ("+hardware.values.sdma_gbps=1", "hardware.values"),
        ("schedule=recipe_afd", "schedule"),
        ("kv_tokens=64", "kv_tokens"),
        ("ep=8", "ep"),
    ],
)
def test_what_only_profiles_have_a_use_for_is_refused_without_them(
    option: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", fit.FitConfig, fit.main, [option, f"output={tmp_path}"]) == 2
    assert f"error: {named}: got" in capsys.readouterr().err
