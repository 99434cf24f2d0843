"""Warm-up steps: the text is the same with any number of them, and no time counts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracle import our_model, prompts_of, spec, write

from runtime_npu.executor import ModelExecutor
from runtime_npu.generate import Decoder, Generation, generate
from runtime_npu.kv_cache import pool_blocks

NEW = 9
LENGTHS = (5, 1, 9)


def run(folder: Path, next_n: int, warmup_steps: int, end_tokens: tuple[int, ...]) -> Generation:
    small = spec("small", vocab_size=5, num_layers=1)
    model = our_model(folder, small, next_n=next_n)
    prompts = prompts_of(small, LENGTHS, 0)
    lengths = [len(prompt) + NEW + next_n - 1 for prompt in prompts]
    blocks = pool_blocks(lengths, None, 4)
    decoder = Decoder(model, lengths, blocks, block_tokens=4, executor=ModelExecutor(model))
    return generate(decoder, prompts, NEW, end_tokens, warmup_steps)


@pytest.mark.parametrize("next_n", [0, 2])
def test_warm_up_changes_nothing_but_itself(next_n: int, tmp_path: Path) -> None:
    small = spec("small", vocab_size=5, num_layers=1)
    folder = write(tmp_path / "model", small, 0, mtp=True)
    cold, warm = (run(folder, next_n, steps, ()) for steps in (0, 3))
    assert warm.token_ids == cold.token_ids
    assert warm.accepted == cold.accepted
    assert warm.steps == cold.steps
    assert len(warm.step_s) == len(cold.step_s)
    assert warm.forward_s == ()


def test_what_ends_with_its_prefill_has_nothing_to_warm_up(tmp_path: Path) -> None:
    small = spec("small", vocab_size=5, num_layers=1)
    folder = write(tmp_path / "model", small, 0, mtp=True)
    every_token = tuple(range(5))
    assert run(folder, 1, 3, every_token).steps == ()
