"""The command with drafts, sampling and int8: results, acceptance, times."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oracle import SPECS, write
from schedules import TWO_STREAMS

from runtime_npu.options import RunOptions
from runtime_npu.run import main
from twin.cli import run as run_command
from twin.schedule_io import save_schedule


def command(*arguments: str) -> int:
    return run_command("run", RunOptions, main, list(arguments))


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


def schedule_file(folder: Path, next_n: int = 0, quantisation: str = "fp32") -> str:
    schedule = replace(
        TWO_STREAMS,
        workload=replace(TWO_STREAMS.workload, next_n=next_n),
        deployment=replace(TWO_STREAMS.deployment, quantisation=quantisation),  # type: ignore[arg-type]
    )
    path = folder / f"{quantisation}_{next_n}.yaml"
    save_schedule(schedule, path)
    return f"schedule={path}"


@pytest.mark.parametrize("next_n", [1, 2])
def test_drafts_give_the_plain_tokens_and_their_acceptance(
    next_n: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = f"checkpoint={write(tmp_path / 'c', SPECS['plain'], 2, mtp=True)}"
    assert command(schedule_file(tmp_path), checkpoint, f"output={tmp_path / 'plain'}") == 0
    drafting = schedule_file(tmp_path, next_n)
    capsys.readouterr()
    assert command(drafting, checkpoint, f"output={tmp_path / 'drafts'}") == 0
    found, plain = result(tmp_path / "drafts"), result(tmp_path / "plain")
    assert found["token_ids"] == plain["token_ids"]
    assert found["differences"] == []
    assert {f"mtp.{number}.sample" for number in range(next_n)} <= {
        op["name"] for op in found["ops"]
    }
    steps = found["accepted"]
    assert len(steps) == next_n + 1
    accepted = sum(number * count for number, count in enumerate(steps))
    assert found["acceptance"] == pytest.approx(accepted / sum(steps))
    assert plain["accepted"] == [2 * 31]
    timing = json.loads((tmp_path / "drafts" / "timing.json").read_text())
    assert {"ttft_ms", "tpot_ms", "tpot_ms_p50", "tpot_ms_p99", "step_ms"} <= set(timing)
    assert timing["tpot_ms_p50"] <= timing["tpot_ms_p99"]
    assert timing["tpot_ms_p50"] <= timing["step_ms"]
    assert "acceptance" in capsys.readouterr().out


def test_a_checkpoint_without_the_mtp_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = f"checkpoint={write(tmp_path / 'c', SPECS['plain'], 2)}"
    assert command(schedule_file(tmp_path, 1), checkpoint, f"output={tmp_path}") == 2
    assert "model.mtp.embed_tokens.weight" in capsys.readouterr().err


def test_w8a8_runs_on_weights_that_it_makes(tmp_path: Path) -> None:
    run = (schedule_file(tmp_path, 1, "w8a8"), "max_new_tokens=6")
    assert command(*run, f"output={tmp_path / 'a'}") == 0
    assert result(tmp_path / "a")["differences"] == []
    kept = tmp_path / "a" / "checkpoint"
    assert command(*run, f"checkpoint={kept}", f"output={tmp_path / 'b'}") == 0
    assert result(tmp_path / "a")["token_ids"] == result(tmp_path / "b")["token_ids"]


def test_w8a8_refuses_a_checkpoint_that_is_not_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = f"checkpoint={write(tmp_path / 'c', SPECS['plain'], 2)}"
    run = (schedule_file(tmp_path, 0, "w8a8"), checkpoint, f"output={tmp_path}")
    assert command(*run) == 2
    assert "runtime_npu.convert" in capsys.readouterr().err


def test_sampling_is_seeded(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert command("max_new_tokens=1", f"make_checkpoint={kept}", f"output={tmp_path}") == 0
    found = []
    for seed, temperature in ((1, 2.0), (1, 2.0), (2, 2.0), (1, 0.0), (2, 0.0)):
        keys = (f"checkpoint={kept}", f"seed={seed}", f"temperature={temperature}")
        assert command(*keys, "max_new_tokens=12", f"output={tmp_path}") == 0
        found.append(result(tmp_path)["token_ids"])
    assert found[0] == found[1] != found[2]
    assert found[3] == found[4] != found[0]


@pytest.mark.parametrize("option", ["temperature=-1", "top_p=0", "top_p=2", "temperature=x"])
def test_bad_options(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(option, f"output={tmp_path}") == 2
    assert option.partition("=")[0] in capsys.readouterr().err
