"""The command on deployments of several dies: results, refusals, failing ranks, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle import SPECS, prompts_of
from processes import running_in_group, until

from runtime_npu.options import RunOptions
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.run import main
from twin.cli import run as run_command
from twin.models import load_model
from twin.schedule_io import load_schedule, shipped_schedules

CPU = [x for x in shipped_schedules() if x.startswith("cpu/") and load_schedule(x).model == "tiny"]
PROMPTS = "prompt_ids=[[1,2,3,4,5],[6],[7,8,9],[10,11]]"


SIZES_OF = {
    "single": {"dies": 1},
    "dp2": {"dies": 2, "attention_groups": 2, "ep": 2},
    "attention_tp2": {"attention_tp": 2},
    **{f"o_proj_tp{n}": {"o_proj_tp": n, "attention_tp": 1, "kvp": 1} for n in (2, 4)},
    **{f"dense_tp{n}": {"dense_tp": n} for n in (2, 4)},
    "ep4": {"ep": 4},
    **{f"kvp{n}": {"kvp": n} for n in (2, 4)},
    "vocabulary_tp2": {"lm_head_tp": 2, "embed_tp": 2},
    "combined4": {"attention_tp": 2, "dense_tp": 4, "ep": 4, "lm_head_tp": 4, "embed_tp": 2},
    **{f"afd_{n}_1": {"dies": n} for n in (1, 2, 3)},
    "afd_2_1_micro_batches": {"dies": 2},
    "afd_direct": {"dies": 2},
}
"""Of the role that holds attention, by layout."""


def command(*arguments: str) -> int:
    return run_command("run", RunOptions, main, list(arguments))


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


def same_as_on_one_die(name: str, folder: Path, *arguments: str) -> None:
    assert command("schedule=tiny_colocated", *arguments, f"output={folder / 'one'}") == 0
    assert command(f"schedule={name}", *arguments, f"output={folder / 'ranks'}") == 0
    one, ranks = result(folder / "one"), result(folder / "ranks")
    assert ranks["token_ids"] == one["token_ids"]
    assert ranks["differences"] == []
    deployment = load_schedule(name).deployment
    assert ranks["ranks"] == deployment.total_dies
    assert bool(ranks["ffn_ops"]) == deployment.is_afd


@pytest.mark.parametrize("layout", SIZES_OF)
def test_every_layout_ships_as_a_schedule_for_cpus(layout: str) -> None:
    schedule = load_schedule(f"cpu/{layout}")
    attention = schedule.deployment.attention
    assert {name: getattr(attention, name) for name in SIZES_OF[layout]} == SIZES_OF[layout]
    assert schedule.deployment.is_afd == layout.startswith("afd")
    assert (schedule.micro_batches > 1) == (layout.endswith(("micro_batches", "direct")))
    assert schedule.deployment.is_direct == layout.endswith("direct")
    assert not schedule.workload.is_prefill


@pytest.mark.nightly
@pytest.mark.parametrize("name", CPU)
def test_a_schedule_for_cpus_gives_the_tokens_of_one_die(name: str, tmp_path: Path) -> None:
    same_as_on_one_die(name, tmp_path, PROMPTS, "max_new_tokens=64")


def test_sequences_that_end_stay_in_the_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sequence ends at once, others later: all ranks stop together, with the last."""
    make_checkpoint(tmp_path / "c", load_model("tiny"), 0)
    run = (f"checkpoint={tmp_path / 'c'}", PROMPTS, "max_new_tokens=8")
    assert command(*run, f"output={tmp_path}") == 0
    free = result(tmp_path)["token_ids"]
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    ends = [free[0][1], free[2][4]]
    (tmp_path / "c" / "config.json").write_text(json.dumps({**config, "eos_token_id": ends}))
    capsys.readouterr()
    same_as_on_one_die("cpu/afd_2_1_micro_batches", tmp_path, *run)
    assert "on all 3 ranks: no differences" in capsys.readouterr().out
    assert len(result(tmp_path / "ranks")["token_ids"][0]) == 2


def test_a_prefill_schedule_gives_the_tokens_of_one_die(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same_as_on_one_die("cpu/prefill_2_micro_batches", tmp_path, PROMPTS, "max_new_tokens=3")
    ops = result(tmp_path / "ranks")["ops"]
    assert "layer.0.mb1.moe.chunk0.token_all_to_all" in {op["name"] for op in ops}
    assert "The prefill on colocated 0" in capsys.readouterr().out
    run = ("schedule=cpu/prefill_2_micro_batches", "prompt_ids=[[1,2]]", f"output={tmp_path}")
    assert command(*run) == 2
    assert "prefill.micro_batches: got 2; allowed: 1 to 1" in capsys.readouterr().err
    assert command(*run, "profile=true") == 2
    assert "profile: got True; allowed: false in prefill" in capsys.readouterr().err


def test_a_checkpoint_that_the_deployment_does_not_fit(
    tmp_path: Path, checkpoint_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three heads, two dies: refused before any rank starts."""
    run = (f"checkpoint={checkpoint_of('plain')}", f"output={tmp_path}")
    assert command("schedule=cpu/attention_tp2", *run) == 2
    assert "attention_tp: got 2; allowed: a divisor of the attention heads 3" in (
        capsys.readouterr().err
    )


def test_what_a_rank_finds_wrong_is_the_commands_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Truncated weights: the ranks find them, and the command says it once, in one line."""
    make_checkpoint(tmp_path / "c", load_model("tiny"), 0)
    shard = tmp_path / "c" / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    run = (f"checkpoint={tmp_path / 'c'}", f"output={tmp_path}")
    assert command("schedule=cpu/dp2", *run) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "model-00002-of-00003.safetensors" in said


@pytest.mark.nightly
def test_a_cache_too_small_for_a_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = prompts_of(SPECS["plain"], (100, 100, 100))
    run = ("prompt_ids=" + json.dumps(prompts).replace(" ", ""), "max_new_tokens=30")
    assert command(*run, "schedule=cpu/dp2", "cache_tokens=511", f"output={tmp_path}") == 2
    assert "cache_tokens: got 511; allowed: at least 512" in capsys.readouterr().err
    assert command(*run, "schedule=cpu/dp2", "cache_tokens=512", f"output={tmp_path}") == 0
    # Each die of a KVP group holds half of the tokens.
    assert command(*run, "schedule=cpu/kvp2", "cache_tokens=384", f"output={tmp_path}") == 0


def _started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("delay_s", [1.0, 6.0, 12.0])
def test_ctrl_c_ends_the_command_at_any_time(delay_s: float, tmp_path: Path) -> None:
    run = ("schedule=cpu/ep4", "max_new_tokens=4000", f"output={tmp_path}")
    started = _started("-m", "runtime_npu.run", *run, start_new_session=True)
    time.sleep(delay_s)
    os.killpg(started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=30)
    assert started.returncode in (130, -signal.SIGINT)
    if started.returncode == 130:
        assert said.strip() == "interrupted"
    until(lambda: running_in_group(started.pid) == 0)


@pytest.mark.nightly
def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    run = ("-m", "runtime_npu.run", "schedule=cpu/kvp2", PROMPTS, "max_new_tokens=6")
    started = _started(*torchrun, "2", *run, f"output={tmp_path}")
    printed, _ = started.communicate(timeout=300)
    assert started.returncode == 0
    assert printed.count("no differences") == 1
    assert command("schedule=cpu/kvp2", *run[3:], f"output={tmp_path / 'own'}") == 0
    ours, theirs = tmp_path / "own" / "result.json", tmp_path / "result.json"
    assert ours.read_bytes() == theirs.read_bytes()
    started = _started(*torchrun, "3", *run, f"output={tmp_path}")
    _, said = started.communicate(timeout=300)
    assert started.returncode != 0
    assert "torchrun ranks: got 3; allowed: 2, one for each die" in said
