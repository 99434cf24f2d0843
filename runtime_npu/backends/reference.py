"""The reference backend: every op in a few lines of plain torch, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from typing_extensions import override

from runtime_npu.backends.base import Dispatched, PrologWeights
from runtime_npu.backends.paged import attend_pages
from runtime_npu.backends.prefill import Routed
from runtime_npu.backends.reference_direct import ReferenceDirect
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.online_softmax import Attended, merge
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.parallel.link import Link
from runtime_npu.quantise import Quantised, quantise_rows, split_scale
from runtime_npu.record import Event
from runtime_npu.rope import Rope
from runtime_npu.sampling import Draw, nucleus


class ReferenceBackend(ReferenceDirect):
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

    @override
    def mla_prolog(
        self,
        x: torch.Tensor,
        weights: PrologWeights,
        rope: Rope,
        cache: LatentCache,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        heads, nope, _ = weights.uk.shape
        q_rank = self.rms_norm(F.linear(x, weights.q_a), weights.q_a_norm, weights.eps)
        queries = F.linear(q_rank, weights.q_b) * weights.q_scale
        q_nope, q_rope = self.rotate_queries(queries, rope, heads).tensor_split([nope], -1)
        self.kv_norm_rope_cache(
            F.linear(x, weights.kv_a),
            weights.kv_a_norm,
            rope,
            cache,
            slots,
            scale=weights.kv_scale,
            eps=weights.eps,
        )
        return self.batch_matmul(q_nope, weights.uk), q_rope

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
        return self._dispatched(self.init_routing(x, ids, experts), group)

    def _dispatched(self, routed: Routed, group: Communicator) -> Dispatched:
        counts = routed.counts.view(group.size, -1)
        arriving = group.all_to_all(counts)
        sent, received = self.read_counts(counts, arriving)
        there = self.re_routing(self.exchange_rows(routed.rows, sent, received, group), arriving)
        return Dispatched(
            there.rows, there.counts, routed.source, there.order, sent, received, group
        )

    @override
    def dispatch_quantised(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, group: Communicator
    ) -> tuple[Dispatched, torch.Tensor]:
        sent = self._dispatched(self.init_routing_quantised(x, ids, experts), group)
        values, scale = split_scale(sent.rows)
        return replace(sent, rows=values), scale

    @override
    def grouped_int_matmul(
        self, x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        return self._by_expert(self.int_matmul, x, weight, counts)

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
        return self._by_expert(self.linear, x, weight, counts)

    def _by_expert(
        self,
        product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        x: torch.Tensor,
        weight: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        groups = torch.split(x, counts.tolist())
        return torch.cat([product(rows, weight[e]) for e, rows in enumerate(groups)])

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
        there = self.restore_order(expert_rows, dispatched.order)
        rows = self.exchange_rows(there, dispatched.received, dispatched.sent, dispatched.group)
        return self.finalize_routing(rows, dispatched.source, x, ids, weights, experts=experts)

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
