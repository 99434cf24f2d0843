"""The reference backend's ops of prefill, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from typing_extensions import override

from runtime_npu.backends.base import Backend
from runtime_npu.backends.prefill import Rerouted, Routed
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.online_softmax import attend
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.quantise import join_scale, quantise_rows, split_scale
from runtime_npu.rope import Rope


class ReferencePrefill(Backend):
    """Prefill; sums run in fp32 where a fused kernel keeps them in fp32."""

    @override
    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x[rows]

    @override
    def rotate_queries(self, queries: torch.Tensor, rope: Rope, heads: int) -> torch.Tensor:
        split = torch.unflatten(queries, 1, (heads, -1))
        width = 2 * rope.cos.shape[-1]
        nope, turned = split[..., :-width], self.rotate(split[..., -width:], rope)
        return torch.cat((nope, turned), -1)

    def rotate(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Turn the interleaved pairs of ``x`` [T, heads, rope] by their row's angles."""
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = rope.cos[:, None, :], rope.sin[:, None, :]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)

    @override
    def kv_norm_rope_cache(
        self,
        kv: torch.Tensor,
        weight: torch.Tensor,
        rope: Rope,
        cache: LatentCache,
        slots: torch.Tensor,
        *,
        scale: float,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kv_rank = len(weight)
        latent = self.rms_norm(kv[:, :kv_rank], weight, eps) * scale
        k_rope = self.rotate(kv[:, None, kv_rank:], rope).squeeze(1)
        cache.write(slots, latent, k_rope)
        return latent, k_rope

    @override
    def keys_and_values(
        self, latent: torch.Tensor, uk: torch.Tensor, uv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.einsum("tr,hnr->thn", latent, uk), torch.einsum("tr,hrv->thv", latent, uv)

    @override
    def causal_attention(
        self,
        queries: torch.Tensor,
        k_nope: torch.Tensor,
        k_rope: torch.Tensor,
        values: torch.Tensor,
        rows: Sequence[int],
        *,
        scale: float,
    ) -> torch.Tensor:
        shared = k_rope[:, None].expand(-1, k_nope.shape[1], -1)
        keys = torch.cat((k_nope, shared), -1)
        by_head = (tensor.transpose(0, 1) for tensor in (queries, keys, values))
        outputs = [
            attend(q, k, v, scale=scale, visible=torch.arange(q.shape[1]) + 1).output
            for q, k, v in zip(
                *(torch.split(tensor, list(rows), dim=1) for tensor in by_head), strict=True
            )
        ]
        return torch.cat(outputs, dim=1).transpose(0, 1).to(values.dtype)

    @override
    def init_routing(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
        flat = ids.flatten()
        by_expert = flat.argsort(stable=True)
        source = by_expert[flat[by_expert] < experts]
        counts = torch.bincount(flat[source], minlength=experts)
        return Routed(x[source // ids.shape[1]], source, counts)

    @override
    def init_routing_quantised(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
        return self.init_routing(join_scale(quantise_rows(x)), ids, experts)

    @override
    def read_counts(
        self, counts: torch.Tensor, arriving: torch.Tensor
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(counts.sum(1).tolist()), tuple(arriving.sum(1).tolist())

    @override
    def exchange_rows(
        self,
        rows: torch.Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        group: Communicator,
    ) -> torch.Tensor:
        return group.exchange(rows, sent, received)

    @override
    def re_routing(self, rows: torch.Tensor, arriving: torch.Tensor) -> Rerouted:
        ranks, local = arriving.shape
        expert = torch.arange(local).repeat(ranks)
        order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
        return Rerouted(rows[order], arriving.sum(0), order)

    @override
    def re_routing_quantised(
        self, rows: torch.Tensor, arriving: torch.Tensor
    ) -> tuple[Rerouted, torch.Tensor]:
        sorted_rows = self.re_routing(rows, arriving)
        values, scale = split_scale(sorted_rows.rows)
        return replace(sorted_rows, rows=values), scale

    @override
    def restore_order(self, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        unsorted = torch.empty_like(rows)
        unsorted[order] = rows
        return unsorted

    @override
    def finalize_routing(
        self,
        rows: torch.Tensor,
        source: torch.Tensor,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        *,
        experts: int,
    ) -> torch.Tensor:
        zero_weight = weights.masked_fill(ids < experts, 0.0).sum(-1, keepdim=True)
        return weighted_sum(rows, source, x, weights, zero_weight)


def weighted_sum(
    rows: torch.Tensor,
    source: torch.Tensor,
    x: torch.Tensor,
    weights: torch.Tensor,
    zero_weight: torch.Tensor,
) -> torch.Tensor:
    """``x`` [T, hidden] by its ``zero_weight`` [T, 1], and what experts gave for it, in fp32.

    ``rows`` [M, hidden] are those of the flattened (row, choice) pairs ``source`` [M], whose
    ``weights`` are [T, topk].
    """
    total = x.float() * zero_weight
    weighted = rows.float() * weights.flatten()[source, None]
    total.index_add_(0, source // weights.shape[1], weighted)
    return total.to(x.dtype)
