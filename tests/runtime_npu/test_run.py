"""The command: results, options, what it refuses, and exit codes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from oracle import SPECS, oracle, oracle_run, prompts_of
from schedules import TWO_STREAMS

import runtime_npu.rank as rank_module
from hardware_models.errors import InputError
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.options import RunOptions
from runtime_npu.plan import check_supported
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.record import Event
from runtime_npu.run import main
from twin.cli import run as run_command
from twin.deployment import Afd
from twin.models import load_model
from twin.schedule import MoePlan, Schedule
from twin.schedule_io import save_schedule

Checkpoints = Callable[[str], Path]


def command(*arguments: str) -> int:
    return run_command("run", RunOptions, main, list(arguments))


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


def ids(prompts: list[list[int]]) -> str:
    return "prompt_ids=" + json.dumps(prompts).replace(" ", "")


def test_the_shipped_tiny_schedule_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("schedule=tiny_colocated", "max_new_tokens=5", f"output={tmp_path}") == 0
    found = result(tmp_path)
    assert found["command"] == "runtime_npu.run"
    assert found["differences"] == []
    assert found["ranks"] == 1
    assert found["acceptance"] == 0.0
    assert [len(tokens) for tokens in found["token_ids"]] == [5, 5]
    assert {op["stream"] for op in found["ops"]} == {"main", "moe", "prefetch"}
    assert "torch" in found["versions"]
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert {"wall_s", "ttft_ms", "tpot_ms", "step_ms", "step_ms_p99"} <= set(timing)
    assert timing["step_ms"] <= timing["step_ms_p99"]
    printed = capsys.readouterr().out
    assert "no differences" in printed
    assert str(found["token_ids"][0][4]) in printed


def test_same_inputs_give_the_same_bytes_in_any_folder(tmp_path: Path) -> None:
    for run in ("a", "b", "a"):
        assert command("max_new_tokens=6", "seed=7", f"output={tmp_path / run}") == 0
    assert command("max_new_tokens=6", "seed=8", f"output={tmp_path / 'c'}") == 0
    first, second, other = (tmp_path / run / "result.json" for run in "abc")
    assert first.read_bytes() == second.read_bytes()
    assert result(tmp_path / "c")["token_ids"] != result(tmp_path / "a")["token_ids"]
    assert other.exists()


def test_a_checkpoint_decides_the_model_and_tokens_equal_transformers(
    tmp_path: Path, checkpoint_of: Checkpoints
) -> None:
    folder = checkpoint_of("many_experts")
    prompts = prompts_of(SPECS["many_experts"], (7, 3))
    assert command(ids(prompts), f"checkpoint={folder}", f"output={tmp_path}") == 0
    found = result(tmp_path)
    assert found["differences"] == []
    assert {op["name"] for op in found["ops"]} >= {"layer.2.add"}
    expected = [oracle_run(oracle(folder), prompt, 32)[0] for prompt in prompts]
    assert found["token_ids"] == expected


def test_make_checkpoint_keeps_what_the_run_used(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = ("max_new_tokens=4", "model=tiny", "seed=3")
    assert command(*options, f"make_checkpoint={kept}", f"output={tmp_path / 'a'}") == 0
    assert command("max_new_tokens=4", f"checkpoint={kept}", f"output={tmp_path / 'b'}") == 0
    assert result(tmp_path / "a")["token_ids"] == result(tmp_path / "b")["token_ids"]
    assert command(*options, f"make_checkpoint={kept}", f"output={tmp_path / 'c'}") == 2


def test_the_models_config_in_a_schedule_means_its_checkpoint(
    tmp_path: Path, checkpoint_of: Checkpoints
) -> None:
    folder = checkpoint_of("plain")
    schedule = replace(
        TWO_STREAMS, model=str(folder / "config.json"), prefetch=TWO_STREAMS.prefetch[:2]
    )
    save_schedule(schedule, tmp_path / "s.yaml")
    prompt = prompts_of(SPECS["plain"], (4,))
    run = (f"schedule={tmp_path / 's.yaml'}", ids(prompt), "max_new_tokens=8")
    assert command(*run, f"output={tmp_path}") == 0
    assert result(tmp_path)["token_ids"] == [oracle_run(oracle(folder), prompt[0], 8)[0]]
    assert not (tmp_path / "checkpoint").exists()


def test_bf16(tmp_path: Path) -> None:
    deployment = replace(TWO_STREAMS.deployment, quantisation="bf16")
    schedule = replace(TWO_STREAMS, deployment=deployment)
    save_schedule(schedule, tmp_path / "s.yaml")
    assert command(f"schedule={tmp_path / 's.yaml'}", f"output={tmp_path / 'o'}") == 0
    assert result(tmp_path / "o")["differences"] == []
    config = json.loads((tmp_path / "o" / "checkpoint" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"


def test_an_end_token_stops_its_sequence_alone(tmp_path: Path, checkpoint_of: Checkpoints) -> None:
    folder, prompts = checkpoint_of("plain"), prompts_of(SPECS["plain"], (5, 9))
    free = [oracle_run(oracle(folder), prompt, 12)[0] for prompt in prompts]
    end = next(token for token in free[0][2:8] if token not in free[1])
    ended = _copy(folder, tmp_path / "ended")
    config = json.loads((ended / "config.json").read_text())
    for value, ends in ((end, {end}), ([end, free[1][0]], {end, free[1][0]})):
        (ended / "config.json").write_text(json.dumps({**config, "eos_token_id": value}))
        run = (f"checkpoint={ended}", ids(prompts), "max_new_tokens=12")
        assert command(*run, f"output={tmp_path}") == 0
        assert result(tmp_path)["token_ids"] == [_until(tokens, ends) for tokens in free]


def _until(tokens: list[int], ends: set[int]) -> list[int]:
    """``tokens`` up to and including the first that ends the text."""
    stop = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: stop + 1]


def _copy(folder: Path, into: Path) -> Path:
    into.mkdir()
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    return into


def test_text_is_printed_as_the_tokenizer_writes_it(
    tmp_path: Path, checkpoint_of: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    """Terminals' markup and names of emojis in it are text."""
    folder = _copy(checkpoint_of("plain"), tmp_path / "checkpoint")
    words = {f":cat:[b]{index}": index for index in range(SPECS["plain"].vocab_size)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=":cat:[b]0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    run = (f"checkpoint={folder}", "max_new_tokens=3", f"output={tmp_path}")
    assert command("prompts=[':cat:[b]5 :cat:[b]7',':cat:[b]90']", *run) == 0
    found = result(tmp_path)
    assert found["prompt_ids"] == [[5, 7], [90]]
    assert found["texts"] == [" ".join(f":cat:[b]{t}" for t in row) for row in found["token_ids"]]
    printed = capsys.readouterr().out
    assert all(f"prompt {index}: {text!r}" in printed for index, text in enumerate(found["texts"]))


TEXTS = ("the cat", "a dog sat on the mat and saw the cat in the hat", "on")


def test_texts_of_different_lengths_end_at_the_tokenizers_end_token(
    tmp_path: Path, checkpoint_of: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte pairs learnt here; every text begins with a token of the tokenizer's own."""
    folder = _copy(checkpoint_of("plain"), tmp_path / "checkpoint")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    size = SPECS["plain"].vocab_size
    letters = [chr(ord("a") + index) for index in range(26)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<s>", "</s>"], initial_alphabet=letters
    )
    tokenizer.train_from_iterator([*TEXTS, "all that is seen at home stays there"], trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    run = (f"checkpoint={folder}", f"prompts={json.dumps(TEXTS)}", f"output={tmp_path}")
    assert command(*run, "max_new_tokens=10") == 0
    found = result(tmp_path)
    assert found["prompt_ids"] == [tokenizer.encode(text).ids for text in TEXTS]
    assert len({len(prompt) for prompt in found["prompt_ids"]}) == len(TEXTS)
    free = [oracle_run(oracle(folder), prompt, 10)[0] for prompt in found["prompt_ids"]]
    assert found["token_ids"] == free
    end = next(token for token in free[1][1:8] if token not in free[0])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": end}))
    capsys.readouterr()
    assert command(*run, "max_new_tokens=10") == 0
    found, printed = result(tmp_path), capsys.readouterr().out
    assert found["token_ids"] == [_until(tokens, {end}) for tokens in free]
    assert len(found["token_ids"][1]) < len(found["token_ids"][0])
    for index, tokens in enumerate(found["token_ids"]):
        assert found["texts"][index] == tokenizer.decode(tokens)
        assert f"prompt {index}: {tokenizer.decode(tokens)!r}" in printed


BAD_OPTIONS = {
    "max_new_tokens=0": "max_new_tokens",
    "schedule=nowhere": "schedule",
    "schedule=recipe_afd": "model",
    "schedule=recipe_colocated": "model",
    "prompt_ids=[]": "prompt_ids",
    "prompt_ids=[[]]": "prompt_ids[0]",
    "prompt_ids=[[1],[256]]": "prompt_ids[1]",
    "prompt_ids=[[-1]]": "prompt_ids[0]",
    "prompt_ids=[[1.5]]": "prompt_ids",
    'prompts=["x"]': "prompts",
    "max_new_tokens=4094": "prompt_ids[0]",
    "cache_tokens=255": "cache_tokens",
    "checkpoint=/nowhere": "checkpoint",
    "model=nothing": "model",
    "device=tpu": "device",
    "nonsense=1": "nonsense",
    f"make_checkpoint={Path(__file__).parent}": "make_checkpoint",
}


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_bad_options_are_input_errors(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(option, f"output={tmp_path}") == 2
    assert BAD_OPTIONS[option] in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()


def test_contradicting_options(
    tmp_path: Path, checkpoint_of: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = f"checkpoint={checkpoint_of('plain')}", f"output={tmp_path}"
    assert command(folder, f"make_checkpoint={tmp_path / 'x'}", output) == 2
    assert command("prompt_ids=[[1]]", 'prompts=["x"]', output) == 2
    capsys.readouterr()
    assert command(folder, "model=tiny", output) == 2
    assert "vocab_size is 97, not 256" in capsys.readouterr().err
    assert command(folder, f"model={checkpoint_of('plain')}", "max_new_tokens=1", output) == 0


def test_a_checkpoint_that_does_not_fit_the_schedule(tmp_path: Path) -> None:
    """1 of the 3 experts is no sensible top-k for the model, whatever the schedule says."""
    spec = replace(load_model("tiny"), name="wide")
    make_checkpoint(tmp_path / "wide", spec, 0)
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    (tmp_path / "wide" / "config.json").write_text(json.dumps({**config, "moe_topk": 99}))
    assert command(f"checkpoint={tmp_path / 'wide'}", f"output={tmp_path}") == 2


def _with(schedule: Schedule, **changes: object) -> Schedule:
    """``schedule`` with fields replaced; dotted names reach into deployment and workload."""
    for name, value in changes.items():
        outer, _, inner = name.partition("__")
        if inner:
            value = replace(getattr(schedule, outer), **{inner: value})  # noqa: PLW2901
        schedule = replace(schedule, **{outer: value})
    return schedule


UNSUPPORTED = {
    "deployment.afd.transport": _with(TWO_STREAMS, deployment__afd=Afd(transport="camp2p")),
    "moe.redundant_experts": _with(TWO_STREAMS, moe=MoePlan(redundant_experts=1)),
}


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_what_is_not_executed_is_refused_by_name(field: str) -> None:
    check_supported(TWO_STREAMS, "file")
    with pytest.raises(InputError) as caught:
        check_supported(UNSUPPORTED[field], "file")
    assert caught.value.field == field


def test_differences_fail_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class MissesTheJoin(ReferenceBackend):
        def wait(self, event: Event) -> None:
            pass

    monkeypatch.setattr(rank_module, "ReferenceBackend", MissesTheJoin)
    assert command("max_new_tokens=3", f"output={tmp_path}") == 1
    assert "layer.0.add: waits" in capsys.readouterr().err
    assert any("layer.1.add: waits" in line for line in result(tmp_path)["differences"])


def test_an_op_issued_in_one_step_only_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ForgetsLater(ReferenceBackend):
        launches = 0

        def launch(self, name: str, kind: str) -> Event:
            self.launches += name == "sample"
            if name == "final_norm" and self.launches == 2:
                return Event(name, "main")
            return super().launch(name, kind)

    monkeypatch.setattr(rank_module, "ReferenceBackend", ForgetsLater)
    assert command("max_new_tokens=4", f"output={tmp_path}") == 1
    assert result(tmp_path)["differences"] == ["step 1: issued other ops than the first step"]


def test_weights_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime_npu.random_checkpoint.WEIGHT_STD", float("nan"))
    assert command("max_new_tokens=3", f"output={tmp_path}") == 2


def _without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process where ``package`` cannot be imported."""
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; "
        f"sys.argv = ['run', *{list(arguments)!r}]; "
        "runpy.run_module('runtime_npu.run', run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_needs_no_torch_and_running_says_how_to_get_it(tmp_path: Path) -> None:
    helped = _without("torch", "--help")
    assert helped.returncode == 0
    assert "prompt_ids" in helped.stdout
    ran = _without("torch", f"output={tmp_path}")
    assert ran.returncode == 4
    assert "pip install 'longcat-twin[runtime]'" in ran.stderr


def test_npu_without_torch_npu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("device=npu", f"output={tmp_path}") == 4
    assert "torch_npu" in capsys.readouterr().err


def test_text_prompts_without_the_tokenizers_package(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", SPECS["plain"], 0)
    (tmp_path / "c" / "tokenizer.json").write_text("{}")
    run = ('prompts=["x"]', f"checkpoint={tmp_path / 'c'}", f"output={tmp_path}")
    ran = _without("tokenizers", *run)
    assert ran.returncode == 4
    assert "pip install tokenizers" in ran.stderr
    assert command(*run) == 2
