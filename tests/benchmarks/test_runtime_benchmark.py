"""The runtime's benchmark on a small model: its rows, and what it refuses."""

import json
from pathlib import Path

import pytest

from benchmarks.runtime import Case, Decoded, RuntimeConfig, main
from twin.cli import run


def command(*arguments: str) -> int:
    return run("benchmark_runtime", RuntimeConfig, main, list(arguments))


def test_both_give_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("model=small", "kv_tokens=[5,130]", "batch=2", "steps=4")
    assert command(*keys, f"output={tmp_path}") == 0
    found = json.loads((tmp_path / "result.json").read_text())
    assert [case["kv_tokens"] for case in found["cases"]] == [5, 130]
    for case in found["cases"]:
        assert case["same_tokens"] == case["tokens"] == 2 * 5
        rates = case["runtime_tokens_per_s"], case["transformers_tokens_per_s"]
        assert case["ratio"] == pytest.approx(rates[0] / rates[1])
        assert rates[0] == pytest.approx(2 / case["runtime_step_s"])
    assert capsys.readouterr().out.count("10 of 10") == 2


def decoded(*rows: tuple[int, ...]) -> Decoded:
    return Decoded(prefill_s=1.0, step_s=1.0, tokens_per_s=1.0, peak_mb=1.0, token_ids=rows)


def test_tokens_that_differ_are_counted_by_place() -> None:
    case = Case(8, decoded((1, 2, 3), (4, 5, 6)), decoded((1, 2, 3), (4, 6, 5)))
    entry = case.entry()
    assert (entry["same_tokens"], entry["tokens"]) == (4, 6)


@pytest.mark.parametrize(
    "option",
    ["model=huge", "kv_tokens=[]", "kv_tokens=[0]", "batch=0", "steps=0", "threads=0", "seed=-1"],
)
def test_bad_options(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(option, f"output={tmp_path}") == 2
    assert option.partition("=")[0] in capsys.readouterr().err
