"""Attention over pages, wherever the pages lie, equals attention over the tokens in order."""

from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime_npu.backends.paged import attend_pages
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.online_softmax import attend


@given(
    block_tokens=st.integers(1, 5),
    order=st.permutations(range(7)),
    rows=st.integers(1, 3),
    tokens=st.integers(0, 35),
    step_tokens=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_pages_in_any_order(
    block_tokens: int, order: list[int], rows: int, tokens: int, step_tokens: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    heads, kv_rank, rope = 2, 6, 4
    tokens = min(tokens, 7 * block_tokens)
    cache = LatentCache(normal(7, block_tokens, kv_rank), normal(7, block_tokens, rope))
    q_latent, q_rope = normal(rows, heads, kv_rank), normal(rows, heads, rope)
    visible = torch.randint(0, tokens + 1, (rows,), generator=generator)
    with patch("runtime_npu.backends.paged.BLOCK_TOKENS", step_tokens):
        found = attend_pages(
            q_latent, q_rope, cache, torch.tensor(order), tokens, scale=0.4, visible=visible
        )
    latent = cache.latent[order].flatten(0, 1)[:tokens]
    keys = torch.cat((latent, cache.rope[order].flatten(0, 1)[:tokens]), -1)
    queries = torch.cat((q_latent, q_rope), -1).transpose(0, 1)
    wanted = attend(
        queries,
        keys.expand(heads, -1, -1),
        latent.expand(heads, -1, -1),
        scale=0.4,
        visible=visible.expand(heads, -1),
    )
    assert torch.allclose(found.output, wanted.output.transpose(0, 1), atol=1e-5)
    assert torch.allclose(found.lse, wanted.lse.T, atol=1e-5)
