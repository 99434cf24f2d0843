"""The MTP head: one dense layer that drafts the token after the next."""

from __future__ import annotations

import torch
from torch import nn

from runtime_npu.batch import Batch
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.attention import Attention
from runtime_npu.model.dense import Dense
from runtime_npu.model.issue import Issuer
from runtime_npu.model.parameters import parameter
from runtime_npu.parallel.shard import Shard
from runtime_npu.parallel.world import Groups
from twin.model_spec import ModelSpec


class MtpHead(nn.Module):
    """A layer over tokens and hidden states, with an embedding and a norm of its own.

    For the row of position i: e is the embedding of token i + 1, g what the main model (or
    the pass before) gave at i.  x = eh_proj([norm(e), norm(g)]); h = x + A(norm(x)); out =
    norm(h + D(norm(h))), from which lm_head makes a draft of token i + 2.  Further passes
    run the same layer one token further on, each with a KV cache of its own.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, shard: Shard, groups: Groups) -> None:
        super().__init__()
        hidden = spec.hidden_size
        self.eps = spec.rms_norm_eps
        self.embed = parameter(len(shard.embed), hidden, dtype=dtype)
        self.enorm = parameter(hidden, dtype=dtype)
        self.hnorm = parameter(hidden, dtype=dtype)
        self.eh_proj = parameter(hidden, 2 * hidden, dtype=dtype)
        self.attention = Attention(spec, "attention", dtype, shard, groups)
        self.dense = Dense(spec, "dense", dtype, shard, groups)
        self.norm = parameter(hidden, dtype=dtype)

    def forward(
        self,
        issue: Issuer,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        batch: Batch,
        cache: LatentCache,
    ) -> torch.Tensor:
        """``embedded`` and ``hidden`` [T, hidden] to the rows behind the norm [T, hidden]."""
        backend, eps, attention = issue.backend, self.eps, self.attention
        both = issue("norms", backend.join_norms, embedded, hidden, self.enorm, self.hnorm, eps)
        x = issue("eh_proj", backend.linear, both, self.eh_proj)
        normed = issue("attention.input_norm", backend.rms_norm, x, attention.input_norm, eps)
        attended = attention(issue, normed, batch, cache)
        normed, h = issue(
            "attention.post_norm", backend.add_rms_norm, attended, x, attention.post_norm, eps
        )
        dense = self.dense(issue, normed)
        out, _ = issue("norm", backend.add_rms_norm, dense, h, self.norm, eps)
        return out
