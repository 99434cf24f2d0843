"""The reference backend: every op in a few lines of plain torch, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from typing_extensions import override

from runtime_npu.backends.base import Backend, Dispatched, PrefillInputs, PrologWeights
from runtime_npu.backends.paged import attend_pages
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.online_softmax import attend
from runtime_npu.record import Event
from runtime_npu.rope import Rope


class ReferenceBackend(Backend):
    """Says what each op computes; streams, limits, scopes and prefetches are only recorded.

    Sums run in fp32 where a fused kernel keeps them in fp32 (norms, softmax, combine);
    results have the dtype of the inputs.
    """

    @override
    def prefetch(self, name: str, weight: torch.Tensor, after: Event, max_bytes: int) -> None:
        self.recorder.prefetch(name, after, min(max_bytes, weight.nbytes))

    @override
    def embed(self, tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return table[tokens]

    @override
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return weight * normed.to(x.dtype)

    @override
    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = residual + x
        return self.rms_norm(total, weight, eps), total

    def rotate(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Turn the interleaved pairs of ``x`` [T, heads, rope] by their row's angles."""
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = rope.cos[:, None, :], rope.sin[:, None, :]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)

    @override
    def prefill_prolog(
        self,
        x: torch.Tensor,
        weights: PrologWeights,
        rope: Rope,
        cache: LatentCache,
        slots: torch.Tensor,
    ) -> PrefillInputs:
        heads, nope, kv_rank = weights.uk.shape
        q_rank = self.rms_norm(F.linear(x, weights.q_a), weights.q_a_norm, weights.eps)
        queries = F.linear(q_rank, weights.q_b).view(len(x), heads, -1) * weights.q_scale
        q_nope, q_rope = queries[..., :nope], queries[..., nope:]

        kv = F.linear(x, weights.kv_a)
        latent = self.rms_norm(kv[:, :kv_rank], weights.kv_a_norm, weights.eps) * weights.kv_scale
        k_rope = self.rotate(kv[:, None, kv_rank:], rope).squeeze(1)
        cache.latent.flatten(0, 1)[slots] = latent
        cache.rope.flatten(0, 1)[slots] = k_rope
        return PrefillInputs(q_nope, self.rotate(q_rope, rope), latent, k_rope)

    @override
    def mla_prolog(
        self,
        x: torch.Tensor,
        weights: PrologWeights,
        rope: Rope,
        cache: LatentCache,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = self.prefill_prolog(x, weights, rope, cache, slots)
        return self.batch_matmul(inputs.q_nope, weights.uk), inputs.q_rope

    @override
    def mla_attention(
        self,
        q_latent: torch.Tensor,
        q_rope: torch.Tensor,
        cache: LatentCache,
        block_table: torch.Tensor,
        rows: Sequence[int],
        kv_lengths: Sequence[int],
        *,
        scale: float,
    ) -> torch.Tensor:
        queries = zip(
            torch.split(q_latent, list(rows)), torch.split(q_rope, list(rows)), strict=True
        )
        outputs = [
            attend_pages(
                latent,
                rope,
                cache,
                block_table[sequence],
                length,
                scale=scale,
                visible=torch.arange(length - len(latent), length) + 1,
            ).output
            for sequence, ((latent, rope), length) in enumerate(
                zip(queries, kv_lengths, strict=True)
            )
        ]
        return torch.cat(outputs).to(q_latent.dtype)

    @override
    def prefill_attention(
        self,
        inputs: PrefillInputs,
        uk: torch.Tensor,
        uv: torch.Tensor,
        rows: Sequence[int],
        *,
        scale: float,
    ) -> torch.Tensor:
        # One key per token and head: its nope part from the latent, its rope part shared.
        k_nope = torch.einsum("tr,hnr->htn", inputs.latent, uk)
        k_rope = inputs.k_rope.expand(len(uk), -1, -1)
        queries = torch.cat((inputs.q_nope, inputs.q_rope), -1).transpose(0, 1)
        keys = torch.cat((k_nope, k_rope), -1)
        values = torch.einsum("tr,hrv->htv", inputs.latent, uv)
        outputs = [
            attend(q, k, v, scale=scale, visible=torch.arange(q.shape[1]) + 1).output
            for q, k, v in zip(
                *(torch.split(tensor, list(rows), dim=1) for tensor in (queries, keys, values)),
                strict=True,
            )
        ]
        return torch.cat(outputs, dim=1).transpose(0, 1).to(inputs.latent.dtype)

    @override
    def batch_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.einsum("thk,hkn->thn", x, weight)

    @override
    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    @override
    def swiglu(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    @override
    def cast(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()

    @override
    def router_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    @override
    def topk_gating(
        self, logits: torch.Tensor, correction_bias: torch.Tensor, topk: int, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = logits.softmax(-1)
        ids = (scores + correction_bias).topk(topk).indices
        return scores.gather(-1, ids) * scale, ids

    @override
    def dispatch(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Dispatched:
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        source = order[flat[order] < experts]
        counts = torch.bincount(flat[source], minlength=experts)
        return Dispatched(x[source // ids.shape[1]], counts, source)

    @override
    def grouped_matmul(
        self, x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        groups = torch.split(x, counts.tolist())
        return torch.cat([F.linear(rows, weight[e]) for e, rows in enumerate(groups)])

    @override
    def combine(
        self,
        expert_rows: torch.Tensor,
        dispatched: Dispatched,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        *,
        experts: int,
    ) -> torch.Tensor:
        zero_weight = weights.masked_fill(ids < experts, 0.0).sum(-1, keepdim=True)
        total = x.float() * zero_weight
        weighted = expert_rows.float() * weights.flatten()[dispatched.source, None]
        total.index_add_(0, dispatched.source // ids.shape[1], weighted)
        return total.to(x.dtype)

    @override
    def add(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x + y + z

    @override
    def sample(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)
