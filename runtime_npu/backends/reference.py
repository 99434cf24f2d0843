"""The reference backend: every op in a few lines of plain torch, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from typing_extensions import override

from runtime_npu.backends.base import Backend, Dispatched, PrefillInputs, PrologWeights
from runtime_npu.backends.paged import attend_pages
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.online_softmax import Attended, attend, merge
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.parallel.link import Link
from runtime_npu.quantise import Quantised, quantise_rows
from runtime_npu.record import Event
from runtime_npu.rope import Rope
from runtime_npu.sampling import Draw, nucleus


class ReferenceBackend(Backend):
    """Says what each op computes; streams, limits, scopes and prefetches are only recorded.

    Sums run in fp32 where a fused kernel keeps them in fp32 (norms, softmax, combine);
    results have the dtype of the inputs.
    """

    @override
    def prefetch(self, name: str, weight: torch.Tensor, after: Event, max_bytes: int) -> None:
        self.recorder.prefetch(name, after, min(max_bytes, weight.nbytes))

    @override
    def embed(self, tokens: torch.Tensor, table: torch.Tensor, first: int) -> torch.Tensor:
        rows = tokens - first
        held = (rows >= 0) & (rows < len(table))
        return table[rows.where(held, 0)] * held[:, None]

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

    @override
    def join_norms(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        x_weight: torch.Tensor,
        y_weight: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        return torch.cat((self.rms_norm(x, x_weight, eps), self.rms_norm(y, y_weight, eps)), -1)

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
        cache.write(slots, latent, k_rope)
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
        output, _ = self.mla_attention_part(
            q_latent, q_rope, cache, block_table, rows, kv_lengths, scale=scale
        )
        return output

    @override
    def mla_attention_part(
        self,
        q_latent: torch.Tensor,
        q_rope: torch.Tensor,
        cache: LatentCache,
        block_table: torch.Tensor,
        rows: Sequence[int],
        kv_lengths: Sequence[int],
        *,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        queries = zip(
            torch.split(q_latent, list(rows)), torch.split(q_rope, list(rows)), strict=True
        )
        parts = [
            attend_pages(
                latent,
                rope,
                cache,
                block_table[sequence],
                length,
                scale=scale,
                visible=torch.arange(length - len(latent), length) + 1,
            )
            for sequence, ((latent, rope), length) in enumerate(
                zip(queries, kv_lengths, strict=True)
            )
        ]
        output = torch.cat([part.output for part in parts]).to(q_latent.dtype)
        return output, torch.cat([part.lse for part in parts])

    @override
    def merge(self, outputs: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        parts = [Attended(*part) for part in zip(outputs.float(), lse, strict=True)]
        return merge(parts).output.to(outputs.dtype)

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
    def dynamic_quant(self, x: torch.Tensor) -> Quantised:
        return quantise_rows(x)

    @override
    def int_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(x, weight.T)

    @override
    def dequant_swiglu_quant(
        self,
        x: torch.Tensor,
        row_scale: torch.Tensor,
        weight_scale: torch.Tensor,
        counts: torch.Tensor,
    ) -> Quantised:
        scales = weight_scale.repeat_interleave(counts, 0)
        return quantise_rows(self.swiglu(x.float() * row_scale[:, None] * scales))

    @override
    def quant_matmul(
        self,
        x: Quantised,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        product = self.int_matmul(x.values, weight).float()
        return (product * x.scale[:, None] * weight_scale).to(dtype)

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
    def dispatch(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, group: Communicator
    ) -> Dispatched:
        flat = ids.flatten()
        by_expert = flat.argsort(stable=True)
        source = by_expert[flat[by_expert] < experts]
        counts = torch.bincount(flat[source], minlength=experts).view(group.size, -1)
        arrived = group.all_to_all(counts)
        sent, received = tuple(counts.sum(1).tolist()), tuple(arrived.sum(1).tolist())
        rows = group.exchange(x[source // ids.shape[1]], sent, received)
        # They come rank by rank, and sorted by expert from each.
        expert = torch.arange(counts.shape[1]).repeat(group.size)
        order = expert.repeat_interleave(arrived.flatten()).argsort(stable=True)
        return Dispatched(rows[order], arrived.sum(0), source, order, sent, received, group)

    @override
    def dispatch_quantised(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, group: Communicator
    ) -> tuple[Dispatched, torch.Tensor]:
        quantised = quantise_rows(x)
        # The scale travels with its row, as its last bytes.
        scale = quantised.scale[:, None].view(torch.int8)
        sent = self.dispatch(torch.cat((quantised.values, scale), 1), ids, experts, group)
        rows, scale = torch.split(sent.rows, [x.shape[1], scale.shape[1]], 1)
        return replace(sent, rows=rows), scale.contiguous().view(torch.float32)[:, 0]

    @override
    def grouped_int_matmul(
        self, x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        groups = torch.split(x, counts.tolist())
        return torch.cat([self.int_matmul(rows, weight[e]) for e, rows in enumerate(groups)])

    @override
    def grouped_quant_matmul(
        self,
        x: Quantised,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        counts: torch.Tensor,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        product = self.grouped_int_matmul(x.values, weight, counts).float()
        scales = weight_scale.repeat_interleave(counts, 0)
        return (product * x.scale[:, None] * scales).to(dtype)

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
        unsorted = torch.empty_like(expert_rows)
        unsorted[dispatched.order] = expert_rows
        rows = dispatched.group.exchange(unsorted, dispatched.received, dispatched.sent)
        weighted = rows.float() * weights.flatten()[dispatched.source, None]
        total.index_add_(0, dispatched.source // ids.shape[1], weighted)
        return total.to(x.dtype)

    @override
    def add(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x + y + z

    @override
    def sample(self, logits: torch.Tensor, draw: Draw | None) -> torch.Tensor:
        if draw is None:
            return logits.argmax(-1)
        return (nucleus(logits.float() / draw.temperature, draw.top_p) + draw.noise).argmax(-1)

    @override
    def all_gather(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        return group.all_gather(x).flatten(0, 1)

    @override
    def reduce_scatter(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        return self._sum(group.all_to_all(torch.unflatten(x, 0, (group.size, -1))))

    @override
    def all_reduce(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        return self._sum(group.all_gather(x))

    def _sum(self, parts: torch.Tensor) -> torch.Tensor:
        """Of ``parts`` [ranks, ...] in fp32: the same bits wherever the same parts are."""
        return parts.float().sum(0).to(parts.dtype)

    @override
    def all_to_all(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        return group.all_to_all(x)

    @override
    def send(self, x: torch.Tensor, link: Link) -> None:
        link.send(x)

    @override
    def receive(self, shape: Sequence[int], dtype: torch.dtype, link: Link) -> torch.Tensor:
        return link.receive(shape, dtype)
