"""MTP: the head against numpy, tokens against plain greedy, and accepted drafts counted."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mtp_oracle import MtpOracle
from oracle import TOLERANCE, our_model, prompts_of, spec, write

from runtime_npu.batch import Step
from runtime_npu.generate import Decoder, Generation, generate
from runtime_npu.kv_cache import KvCache, pool_blocks
from runtime_npu.model.longcat import LongcatFlash, StepOutput
from runtime_npu.speculate import accept
from twin.model_spec import ModelSpec

NEW = 24
LENGTHS = (5, 1, 9)


def run(
    folder: Path,
    model_spec: ModelSpec,
    next_n: int,
    prompts: Sequence[Sequence[int]],
    end_tokens: Sequence[int] = (),
) -> Generation:
    model = our_model(folder, model_spec, next_n=next_n)
    # No position more: the last step begins at least one token before the end.
    lengths = [len(prompt) + NEW + next_n - 1 for prompt in prompts]
    decoder = Decoder(model, lengths, pool_blocks(lengths, None, 4), block_tokens=4)
    return generate(decoder, prompts, NEW, end_tokens)


@pytest.mark.parametrize("next_n", [1, 2])
@pytest.mark.parametrize("vocab_size", [4, 5, 8])
def test_tokens_equal_plain_greedy_whatever_is_accepted(
    vocab_size: int, next_n: int, tmp_path: Path
) -> None:
    small = spec("small", vocab_size=vocab_size, num_layers=1)
    counts: Counter[int] = Counter()
    for seed in range(4):
        folder = write(tmp_path / str(seed), small, seed, mtp=True)
        prompts = prompts_of(small, LENGTHS, seed)
        plain, drafted = (run(folder, small, n, prompts) for n in (0, next_n))
        assert drafted.token_ids == plain.token_ids
        assert all(accepted == (0,) * len(accepted) for accepted in plain.accepted)
        assert len(plain.steps) == NEW - 1
        counts.update(count for step in drafted.accepted for count in step)
    assert set(counts) == set(range(next_n + 1))
    assert min(counts.values()) > 3


def test_accepted_drafts_save_steps(tmp_path: Path) -> None:
    """Each step gives a sequence one token and its accepted drafts, cut at the last token."""
    small = spec("small", vocab_size=4, num_layers=1)
    folder, prompt = write(tmp_path / "c", small, 3, mtp=True), [[1, 2, 3]]
    found = run(folder, small, 2, prompt)
    made = [1 + count for (count,) in found.accepted]
    assert sum(made[:-1]) < NEW - 1 <= sum(made)
    assert len(found.steps) == len(found.step_s) == len(made) < NEW - 1


@pytest.mark.parametrize("next_n", [1, 2])
def test_an_end_token_ends_its_sequence_even_among_accepted_drafts(
    next_n: int, tmp_path: Path
) -> None:
    small = spec("small", vocab_size=5, num_layers=1)
    inside = 0
    for seed in range(4):
        folder = write(tmp_path / str(seed), small, seed, mtp=True)
        prompts = prompts_of(small, LENGTHS, seed)
        for end in range(5):
            plain, drafted = (run(folder, small, n, prompts, [end]) for n in (0, next_n))
            assert drafted.token_ids == plain.token_ids
            assert all(tokens.count(end) <= 1 for tokens in drafted.token_ids)
            made = sum(1 + count for step in drafted.accepted for count in step)
            kept = sum(len(tokens) - 1 for tokens in drafted.token_ids)
            inside += made > kept
    assert inside


@given(st.lists(st.integers(0, 2), max_size=3), st.data())
def test_accept_keeps_the_longest_right_start(drafts: list[int], data: st.DataObject) -> None:
    size = len(drafts) + 1
    chosen = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    new = accept(drafts, chosen)
    right = [drafts[:count] == chosen[:count] for count in range(size)]
    assert len(new) == sum(right)
    assert new == chosen[: len(new)]


class Watched(LongcatFlash):
    """Keeps what every pass was given and gave."""

    def watch(self) -> None:
        self.mains: list[tuple[Step, StepOutput]] = []
        self.drafts: list[tuple[int, Step, torch.Tensor, StepOutput]] = []

    def forward(self, step: Step, cache: KvCache) -> StepOutput:
        output = super().forward(step, cache)
        self.mains.append((step, output))
        return output

    def draft(self, number: int, step: Step, hidden: torch.Tensor, cache: KvCache) -> StepOutput:
        output = super().draft(number, step, hidden, cache)
        self.drafts.append((number, step, hidden, output))
        return output


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_attention_heads": 4, "hidden_size": 64, "rms_norm_eps": 1e-2, "rope_theta": 50.0}],
)
def test_the_head_equals_numpy(changes: dict[str, object], tmp_path: Path) -> None:
    """Every row of every pass: tokens and hidden states as they went in, logits as they came."""
    model_spec = spec("head", vocab_size=6, num_layers=1, **changes)
    folder = write(tmp_path / "c", model_spec, 2, mtp=True)
    model = our_model(folder, model_spec, next_n=2)
    model.__class__ = Watched
    assert isinstance(model, Watched)
    model.watch()
    prompt = [1, 2, 3, 4]
    lengths = [len(prompt) + NEW + 2]
    decoder = Decoder(model, lengths, pool_blocks(lengths, None, 4), block_tokens=4)
    found = generate(decoder, [prompt], NEW)
    text = [*prompt, *found.token_ids[0]]
    assert len(model.drafts) == 2 * len(model.mains)

    oracle, start = MtpOracle(folder, model_spec), 0
    accepted = [0, *(count for (count,) in found.accepted)]
    for turn, (main, main_output) in enumerate(model.mains):
        last = len(main.tokens) - 1 if turn == 0 else accepted[turn]
        hidden = main_output.hidden.double().numpy()
        for number, step, given_hidden, output in model.drafts[2 * turn : 2 * turn + 2]:
            assert np.allclose(given_hidden.numpy(), hidden, atol=1e-5)
            ahead = 1 + number
            for row in range(last + 1 - number):
                # Up to here the tokens are the text's, that many places on.
                at = start + row + ahead
                assert at >= len(text) or int(step.tokens[row]) == text[at]
            rows = [
                oracle.row(number, int(token), hidden[row], start + row)
                for row, token in enumerate(step.tokens)
            ]
            hidden = np.stack([out for out, _ in rows])
            logits = np.stack([rows[row][1] for row in step.last_rows.tolist()])
            scale = np.abs(logits).max()
            assert np.abs(output.hidden.numpy() - hidden).max() < TOLERANCE * np.abs(hidden).max()
            assert np.abs(output.logits.numpy() - logits).max() < TOLERANCE * scale
        start += last + 1
