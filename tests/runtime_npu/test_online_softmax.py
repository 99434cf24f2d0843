"""Blocked attention and the merge of parts, against a plain softmax in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime_npu.model.online_softmax import Attended, OnlineSoftmax, attend, merge

SIZES = st.integers(1, 5)


def plain(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    visible: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, row by row and in float64; rows that see nothing give 0, -inf."""
    flat = queries.double().flatten(0, -2)
    outputs, sums = torch.zeros(len(flat), values.shape[-1]).double(), []
    for row, query in enumerate(flat):
        seen = int(visible.flatten()[row])
        lead = row // queries.shape[-2]
        k, v = keys.double()[lead, :seen], values.double()[lead, :seen]
        scores = (k * query).sum(-1) * scale
        sums.append(torch.logsumexp(scores, 0) if seen else torch.tensor(-torch.inf).double())
        if seen:
            outputs[row] = (torch.softmax(scores, 0)[:, None] * v).sum(0)
    return outputs.view(*queries.shape[:-1], -1), torch.stack(sums).view(queries.shape[:-1])


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    lead, rows, k, v = (draw(SIZES) for _ in range(4))
    tokens = draw(st.integers(0, 23))
    size = draw(st.sampled_from((1e-3, 1.0, 30.0)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    visible = torch.randint(0, tokens + 1, (lead, rows), generator=generator)
    q = normal(lead, rows, k) * size
    return q, normal(lead, tokens, k) * size, normal(lead, tokens, v), visible


def check(found: Attended, output: torch.Tensor, lse: torch.Tensor) -> None:
    assert not found.output.isnan().any()
    assert not found.lse.isnan().any()
    assert torch.equal(found.lse == -torch.inf, lse == -torch.inf)
    assert torch.equal(found.output[lse == -torch.inf], output[lse == -torch.inf].float())
    assert torch.allclose(found.output.double(), output, rtol=1e-4, atol=1e-4)
    seen = lse > -torch.inf
    assert torch.allclose(found.lse.double()[seen], lse[seen], rtol=1e-5, atol=1e-4)


@given(cases(), st.integers(1, 30))
def test_blocks_give_the_plain_softmax(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], block_tokens: int
) -> None:
    q, k, v, visible = case
    found = attend(q, k, v, scale=0.7, visible=visible, block_tokens=block_tokens)
    check(found, *plain(q, k, v, 0.7, visible))


@given(cases(), st.integers(1, 9))
def test_parts_dealt_round_robin_merge_to_the_whole(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], ranks: int
) -> None:
    """Token p lies on part p % ranks, so a row that sees n tokens sees (n - rank) / ranks, up."""
    q, k, v, visible = case
    parts = [
        attend(
            q,
            k[:, rank::ranks],
            v[:, rank::ranks],
            scale=0.7,
            visible=(visible - rank + ranks - 1) // ranks,
            block_tokens=3,
        )
        for rank in range(ranks)
    ]
    check(merge(parts), *plain(q, k, v, 0.7, visible))


def test_an_empty_shard_gives_zero_and_minus_infinity_and_changes_no_merge() -> None:
    q, v = torch.randn(2, 3, 4), torch.randn(2, 6, 5)
    empty = attend(q, torch.empty(2, 0, 4), v[:, :0], scale=1.0)
    assert torch.equal(empty.output, torch.zeros(2, 3, 5))
    assert torch.equal(empty.lse, torch.full((2, 3), -torch.inf))
    assert torch.equal(merge([empty, empty]).output, empty.output)
    assert torch.equal(merge([empty, empty]).lse, empty.lse)
    whole = attend(q, torch.randn(2, 6, 4), v, scale=1.0)
    assert torch.allclose(merge([empty, whole, empty]).output, whole.output)
    assert torch.allclose(merge([empty, whole]).lse, whole.lse)


def test_statistics_are_fp32_for_bf16_inputs() -> None:
    """Many equal tokens: a sum kept in bf16 would stop growing at 256."""
    tokens = 4096
    q, k, v = (torch.ones(1, n, 8, dtype=torch.bfloat16) for n in (1, tokens, tokens))
    found = attend(q, k, v, scale=0.125, block_tokens=64)
    assert found.output.dtype == found.lse.dtype == torch.float32
    assert torch.equal(found.output, torch.ones(1, 1, 8))
    assert float(found.lse) == pytest.approx(1 + torch.log(torch.tensor(tokens)).item())


def test_scores_far_from_zero_neither_overflow_nor_vanish() -> None:
    softmax = OnlineSoftmax((3,), 2)
    low, high = torch.tensor([[-3e4], [0.0], [3e4]]), torch.tensor([[-3e4], [3e4], [-3e4]])
    softmax.add(low, torch.tensor([[1.0, 2.0]]))
    softmax.add(high, torch.tensor([[3.0, 6.0]]))
    expected = torch.tensor([[2.0, 4.0], [3.0, 6.0], [1.0, 2.0]])
    assert torch.equal(softmax.result().output, expected)
