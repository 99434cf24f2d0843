"""Sampling: distributions, the nucleus, and draws that belong to places."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import our_model, prompts_of, spec, write

from hardware_models.errors import InputError
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.generate import Decoder, Tokens, generate
from runtime_npu.kv_cache import pool_blocks
from runtime_npu.sampling import Sampling, draw, nucleus, sampling

SMALL = spec("small", vocab_size=6, num_layers=1)
NEW = 20
PROMPTS = prompts_of(SMALL, (5, 1, 9))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sampled") / "checkpoint", SMALL, 2, mtp=True)


def texts(
    folder: Path, choice: Sampling | None, next_n: int = 0, prompts: list[list[int]] = PROMPTS
) -> tuple[Tokens, ...]:
    model = our_model(folder, SMALL, next_n=next_n)
    lengths = [len(prompt) + NEW + next_n for prompt in prompts]
    decoder = Decoder(model, lengths, pool_blocks(lengths, None), sampling=choice)
    return generate(decoder, prompts, NEW).token_ids


def drawn(temperature: float = 3.0, top_p: float = 1.0, seed: int = 1) -> Sampling:
    return Sampling(temperature=temperature, top_p=top_p, seed=seed)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.8)])
def test_draws_follow_the_softmax(temperature: float, top_p: float) -> None:
    """Shares of 20000 draws, each at a place of its own, within five standard deviations."""
    count, logits = 20000, torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5])
    noise = draw(drawn(temperature, top_p), [(7, place) for place in range(count)], 5)
    tokens = ReferenceBackend().sample(logits.expand(count, -1), noise)
    shares = torch.bincount(tokens, minlength=5) / count
    wanted = torch.softmax(logits / temperature, 0)
    if top_p < 1.0:
        kept = torch.tensor([0, 1, 2, 4])  # all but the least likely hold 0.8 first
        wanted = torch.zeros(5).index_put((kept,), wanted[kept])
        wanted /= wanted.sum()
    assert ((shares - wanted).abs() <= 5 * (wanted * (1 - wanted) / count).sqrt()).all()


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(0.01, 1.0))
def test_the_nucleus_is_the_smallest_set_that_holds_top_p(
    values: list[float], top_p: float
) -> None:
    logits = torch.tensor([values])
    kept = nucleus(logits, top_p)[0] > -torch.inf
    shares = logits[0].softmax(-1)
    assert float(shares[kept].sum()) >= top_p - 1e-5
    assert float(shares[kept].sum() - shares[kept].min()) < top_p + 1e-5
    if not kept.all():
        assert shares[kept].min() >= shares[~kept].max()


def test_the_seed_decides_the_text(folder: Path) -> None:
    first = texts(folder, drawn(seed=1))
    assert texts(folder, drawn(seed=1)) == first
    assert texts(folder, drawn(seed=2)) != first
    assert texts(folder, drawn(seed=-1)) != first
    assert first != texts(folder, None)


@pytest.mark.parametrize("next_n", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_drafts_change_no_drawn_text(next_n: int, seed: int, folder: Path) -> None:
    choice = drawn(temperature=1.0, top_p=0.9, seed=seed)
    assert texts(folder, choice, next_n) == texts(folder, choice)


def test_a_sequence_is_drawn_alike_in_any_batch_that_begins_alike(folder: Path) -> None:
    assert texts(folder, drawn(), prompts=PROMPTS[:1])[0] == texts(folder, drawn())[0]
    twice = texts(folder, drawn(), prompts=[PROMPTS[0], PROMPTS[0]])
    assert twice[0] != twice[1]


def test_a_tiny_nucleus_is_greedy(folder: Path) -> None:
    assert texts(folder, drawn(top_p=1e-6)) == texts(folder, None)


def test_numbers_out_of_range() -> None:
    assert sampling(0.0, 1.0, 0) is None
    assert sampling(0.5, 1.0, 3) == Sampling(temperature=0.5, top_p=1.0, seed=3)
    for temperature, top_p, field in (
        (-0.1, 1.0, "temperature"),
        (float("nan"), 1.0, "temperature"),
        (float("inf"), 1.0, "temperature"),
        (1.0, 0.0, "top_p"),
        (1.0, 1.1, "top_p"),
        (0.0, float("nan"), "top_p"),
    ):
        with pytest.raises(InputError) as caught:
            sampling(temperature, top_p, 0)
        assert caught.value.field == field
