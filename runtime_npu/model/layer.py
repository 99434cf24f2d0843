"""One layer: two attentions, two dense FFNs, and the MoE on its shortcut."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from runtime_npu.batch import Batch
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.attention import Attention
from runtime_npu.model.dense import Dense
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from twin.model_spec import ModelSpec


class Layer(nn.Module):
    """A shortcut-connected MoE layer.

    h1 = x + A0(norm(x)); u = norm(h1); h2 = h1 + D0(u); h3 = h2 + A1(norm(h2));
    out = h3 + D1(norm(h3)) + MoE(u).
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, chunk_tokens: int | None) -> None:
        super().__init__()
        self.eps = spec.rms_norm_eps
        self.chunk_tokens = chunk_tokens
        self._attentions = tuple(Attention(spec, f"attention.{j}", dtype) for j in (0, 1))
        self._denses = tuple(Dense(spec, f"dense.{j}", dtype) for j in (0, 1))
        # Registered under the schedule's names, so that a weight is found by its name.
        self.attention = nn.ModuleList(self._attentions)
        self.dense = nn.ModuleList(self._denses)
        self.moe = Moe(spec, dtype)

    def forward(
        self, issue: Issuer, x: torch.Tensor, batch: Batch, caches: Sequence[LatentCache]
    ) -> torch.Tensor:
        """Rows [T, hidden] through the layer; ``caches`` are those of its two attentions."""
        backend, eps = issue.backend, self.eps
        first, second = self._attentions
        with issue.stages():
            normed = issue("attention.0.input_norm", backend.rms_norm, x, first.input_norm, eps)
            attended = first(issue, normed, batch, caches[0])
            u, h1 = issue(
                "attention.0.post_norm", backend.add_rms_norm, attended, x, first.post_norm, eps
            )

            u_ready = backend.signal()
            with issue.moe_branch():
                backend.wait(u_ready)
                shortcut = self._experts(issue, u, batch)
                moe_done = backend.signal()

            dense = self._denses[0](issue, u)
            normed, h2 = issue(
                "attention.1.input_norm", backend.add_rms_norm, dense, h1, second.input_norm, eps
            )
            attended = second(issue, normed, batch, caches[1])
            normed, h3 = issue(
                "attention.1.post_norm", backend.add_rms_norm, attended, h2, second.post_norm, eps
            )
            dense = self._denses[1](issue, normed)
            backend.wait(moe_done)
            out: torch.Tensor = issue("add", backend.add, h3, dense, shortcut)
        return out

    def _experts(self, issue: Issuer, u: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The MoE; in prefill in chunks of at most ``chunk_tokens`` rows, to bound memory."""
        chunks: tuple[torch.Tensor, ...] = (u,)
        if batch.phase == "prefill" and self.chunk_tokens is not None:
            chunks = torch.split(u, self.chunk_tokens)
        return torch.cat([self.moe(issue, chunk) for chunk in chunks])
