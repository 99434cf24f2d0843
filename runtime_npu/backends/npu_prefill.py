"""The npu backend's ops of prefill, launched one by one: the host reads counts between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed._functional_collectives as collectives
from torch.nn.functional import pad
from typing_extensions import override

from runtime_npu.backends.npu_ffn import NpuFfn
from runtime_npu.backends.prefill import Rerouted, Routed
from runtime_npu.kv_cache import LatentCache
from runtime_npu.npu import attention_ops, matmul_ops, moe_ops
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.quantise import Quantised, join_scale, split_scale
from runtime_npu.rope import Rope


class NpuPrefill(NpuFfn):
    """Un-absorbed attention and double routing.

    Rows in the order of the experts are as many as there are choices: those for zero experts
    are none, and lie behind the others, unused.
    """

    @override
    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._wrote(x.index_select(0, self._forms.of(rows)))

    @override
    def rotate_queries(self, queries: torch.Tensor, rope: Rope, heads: int) -> torch.Tensor:
        split = torch.unflatten(queries, 1, (heads, -1))
        cos, sin = self._forms.of(rope.cos), self._forms.of(rope.sin)
        turning = split[..., -cos.shape[1] :]
        # In place: the nope parts stay where they are.
        turning.copy_(attention_ops.interleave_rope(turning, cos, sin))
        return self._wrote(split)

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
        of, by_row = self._forms.of, (len(kv), 1, 1, -1)
        rotated, latent = attention_ops.kv_rmsnorm_rope_cache(
            kv.view(by_row),
            self._forms.scaled(weight, scale),
            of(rope.cos).view(by_row),
            of(rope.sin).view(by_row),
            of(slots),
            of(cache.rope),
            of(cache.latent),
            epsilon=eps,
        )
        return self._wrote(latent.flatten(1)), rotated.flatten(1)

    @override
    def keys_and_values(
        self, latent: torch.Tensor, uk: torch.Tensor, uv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Two products, because a part of one's columns is no tensor that attention can read.
        k_nope = matmul_ops.matmul(latent, self._forms.flat(uk, inner=2))
        values = matmul_ops.matmul(latent, self._forms.flat(uv, inner=1))
        heads = len(uk)
        return (
            self._wrote(torch.unflatten(k_nope, 1, (heads, -1))),
            torch.unflatten(values, 1, (heads, -1)),
        )

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
        nope = k_nope.shape[2]
        output = attention_ops.causal_attention(
            queries[..., :nope].contiguous(),
            queries[..., nope:].contiguous(),
            k_nope,
            k_rope[:, None].expand(-1, k_nope.shape[1], -1).contiguous(),
            values,
            self._forms.mask,
            list(accumulate(rows)),
            scale=scale,
        )
        return self._wrote(output)

    @override
    def init_routing(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
        rows, places, counts = moe_ops.init_routing(x, ids, experts, self._router_width - experts)
        self._wrote_beside(counts)
        return Routed(self._wrote(rows), places, counts)

    @override
    def init_routing_quantised(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
        rows, scales, places, counts = moe_ops.init_routing_quantised(
            x, ids, experts, self._router_width - experts
        )
        self._wrote_beside(counts)
        return Routed(self._wrote(join_scale(Quantised(rows, scales))), places, counts)

    @override
    def read_counts(
        self, counts: torch.Tensor, arriving: torch.Tensor
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        self._read(counts, arriving)
        both = self._on_host(torch.stack((counts.sum(1), arriving.sum(1))))
        self._listener.done()
        sent, received = both.tolist()
        return tuple(sent), tuple(received)

    def _on_host(self, sums: torch.Tensor) -> torch.Tensor:
        """``sums`` [2, ranks], once the device has got there."""
        return sums.cpu()

    @override
    def exchange_rows(
        self,
        rows: torch.Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        group: Communicator,
    ) -> torch.Tensor:
        self._read(rows)
        leaving = rows[: sum(sent)]
        if group.size == 1:
            return self._wrote(leaving)
        return self._collected(
            collectives.all_to_all_single(leaving, list(received), list(sent), group.handle)
        )

    @override
    def re_routing(self, rows: torch.Tensor, arriving: torch.Tensor) -> Rerouted:
        sorted_rows, _, order, counts = moe_ops.re_routing(rows, arriving)
        return Rerouted(self._wrote(sorted_rows), counts, order)

    @override
    def re_routing_quantised(
        self, rows: torch.Tensor, arriving: torch.Tensor
    ) -> tuple[Rerouted, torch.Tensor]:
        values, scale = split_scale(rows)
        sorted_rows, scales, order, counts = moe_ops.re_routing(values, arriving, scale)
        return Rerouted(self._wrote(sorted_rows), counts, order), scales

    @override
    def restore_order(self, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        return self._wrote(torch.empty_like(rows).index_copy_(0, order, rows))

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
        is_zero = ids >= experts
        kept = weights.masked_fill(is_zero, 0.0).to(x.dtype)
        # A choice without a row is at place -1; with weight 0 any row does.
        whole = pad(rows, (0, 0, 0, weights.numel() - len(rows)))
        summed = moe_ops.finalize_routing(whole, kept, source.clamp(min=0))
        zero_weight = weights.masked_fill(~is_zero, 0.0).sum(-1, keepdim=True).to(x.dtype)
        return self._wrote(torch.addcmul(summed, x, zero_weight))
