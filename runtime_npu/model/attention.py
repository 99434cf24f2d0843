"""Multi-head latent attention (MLA): absorbed in decode, un-absorbed in prefill."""

from __future__ import annotations

import math

import torch
from torch import nn

from runtime_npu.backends.base import PrologWeights
from runtime_npu.batch import Batch
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.issue import Issuer
from runtime_npu.model.parameters import parameter
from runtime_npu.model.pieces import Pieces, finish
from runtime_npu.parallel.shard import Shard
from runtime_npu.parallel.world import Groups
from twin.model_spec import ModelSpec

LATENT_NORM_EPS = 1e-6
"""Epsilon of the two norms on the latents; the config's ``rms_norm_eps`` covers the others
only (transformers' LongcatFlashMLA builds them with their default)."""


class Attention(nn.Module):
    """One attention with its two norms; parameters carry the schedule's weight names.

    ``kv_b`` of the checkpoint is held as its two parts: ``uk`` [heads, nope, kv rank]
    turns a query's nope part into the latent space, ``uv`` [heads, kv rank, v] turns the
    attended latent into the head's output.
    """

    def __init__(
        self, spec: ModelSpec, name: str, dtype: torch.dtype, shard: Shard, groups: Groups
    ) -> None:
        super().__init__()
        self.name = name
        heads, hidden = len(shard.heads), spec.hidden_size
        self._rows_group = groups["attention_tp"]
        self._kv_group = groups["kvp"]
        self._o_proj_group = groups["o_proj_tp"]
        q_rank, kv_rank = spec.q_lora_rank, spec.kv_lora_rank
        self.input_norm = parameter(hidden, dtype=dtype)
        self.q_a = parameter(q_rank, hidden, dtype=dtype)
        self.q_a_norm = parameter(q_rank, dtype=dtype)
        self.q_b = parameter(heads * spec.qk_head_dim, q_rank, dtype=dtype)
        self.kv_a = parameter(spec.kv_width, hidden, dtype=dtype)
        self.kv_a_norm = parameter(kv_rank, dtype=dtype)
        self.uk = parameter(heads, spec.qk_nope_head_dim, kv_rank, dtype=dtype)
        self.uv = parameter(heads, kv_rank, spec.v_head_dim, dtype=dtype)
        self.o_proj = parameter(hidden, len(shard.o_proj), dtype=dtype)
        self.post_norm = parameter(hidden, dtype=dtype)
        self.q_scale = math.sqrt(hidden / q_rank) if spec.mla_scale_q_lora else 1.0
        self.kv_scale = math.sqrt(hidden / kv_rank) if spec.mla_scale_kv_lora else 1.0
        self.softmax_scale = spec.qk_head_dim**-0.5

    def forward(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> torch.Tensor:
        """Attend from ``normed`` rows [T, hidden]; the projected output [T, hidden].

        With heads split over dies the group's rows are gathered first; the result is
        scattered over the group's dies again.
        """
        return finish(self.pieces(issue, normed, batch, cache))

    def pieces(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> Pieces[torch.Tensor]:
        """:meth:`forward`, cut behind its exchanges."""
        if self._rows_group.size > 1:
            gather = f"{self.name}.all_gather"
            call = issue.backend.all_gather
            normed = yield from issue.exchange(gather, call, normed, self._rows_group)
        attend = self._decode
        if batch.phase == "prefill":
            attend = self._prefill
        elif self._kv_group.size > 1:
            attend = self._decode_parts
        heads = attend(issue, normed, batch, cache).flatten(1)
        return (yield from self._project(issue, heads))

    def _project(self, issue: Issuer, heads: torch.Tensor) -> Pieces[torch.Tensor]:
        """o_proj of ``heads`` [T, heads x v], of which this rank may hold a part."""
        backend, group = issue.backend, self._o_proj_group
        if group.size > 1 and self._rows_group.size == self._kv_group.size == 1:
            parts = torch.unflatten(heads, 1, (group.size, -1)).transpose(0, 1)
            name = f"{self.name}.all_to_all"
            heads = (yield from issue.exchange(name, backend.all_to_all, parts, group)).flatten(
                0, 1
            )
        out = issue(f"{self.name}.o_proj", backend.linear, heads, self.o_proj)
        if group.size == 1:
            return out
        if self._kv_group.size > 1:
            op, call = "all_reduce", backend.all_reduce
        else:
            op, call = "reduce_scatter", backend.reduce_scatter
        return (yield from issue.exchange(f"{self.name}.{op}", call, out, group))

    def _decode(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> torch.Tensor:
        backend = issue.backend
        q_latent, q_rope = self._queries(issue, normed, batch, cache)
        latent = issue(
            f"{self.name}.attention",
            backend.mla_attention,
            q_latent,
            q_rope,
            cache,
            batch.block_table,
            batch.rows,
            batch.kv_lengths,
            scale=self.softmax_scale,
        )
        return issue(f"{self.name}.uv", backend.batch_matmul, latent, self.uv)

    def _decode_parts(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> torch.Tensor:
        """All heads over this rank's part of the cache; then the own heads over all parts."""
        backend, group = issue.backend, self._kv_group
        q_latent, q_rope = self._queries(issue, normed, batch, cache)
        latent, lse = issue(
            f"{self.name}.attention",
            backend.mla_attention_part,
            q_latent,
            q_rope,
            cache,
            batch.block_table,
            batch.rows,
            batch.kv_lengths,
            scale=self.softmax_scale,
        )
        heads = issue(f"{self.name}.uv", backend.batch_matmul, latent, self.uv)
        outputs = torch.unflatten(heads, 1, (group.size, -1)).transpose(0, 1)
        outputs = issue(f"{self.name}.all_to_all", backend.all_to_all, outputs, group)
        lse = torch.unflatten(lse, 1, (group.size, -1)).transpose(0, 1)
        lse = issue(f"{self.name}.lse_all_to_all", backend.all_to_all, lse, group)
        return issue(f"{self.name}.merge", backend.merge, outputs, lse)

    def _queries(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights = PrologWeights(
            q_a=self.q_a,
            q_a_norm=self.q_a_norm,
            q_b=self.q_b,
            kv_a=self.kv_a,
            kv_a_norm=self.kv_a_norm,
            uk=self.uk,
            q_scale=self.q_scale,
            kv_scale=self.kv_scale,
            eps=LATENT_NORM_EPS,
        )
        return issue(
            f"{self.name}.prolog",
            issue.backend.mla_prolog,
            normed,
            weights,
            batch.rope,
            cache,
            batch.slots,
        )

    def _prefill(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> torch.Tensor:
        """Un-absorbed: each head has keys and values of its own, made from the rows' latents."""
        # Of the rows themselves, so that heads can be split where the cache is.
        own = len(self.uk) // self._kv_group.size
        heads = slice(self._kv_group.index * own, (self._kv_group.index + 1) * own)
        backend, name, eps = issue.backend, self.name, LATENT_NORM_EPS
        q_b = torch.unflatten(self.q_b, 0, (len(self.uk), -1))[heads].flatten(0, 1)
        q_latent = issue(f"{name}.q_a", backend.linear, normed, self.q_a)
        q_latent = issue(f"{name}.q_norm", backend.rms_norm, q_latent, self.q_a_norm, eps)
        queries = issue(f"{name}.q_b", backend.linear, q_latent, q_b)
        queries = issue(f"{name}.rope", backend.rotate_queries, queries, batch.rope, own)
        kv = issue(f"{name}.kv_a", backend.linear, normed, self.kv_a)
        latent, k_rope = issue(
            f"{name}.kv_norm_rope_cache",
            backend.kv_norm_rope_cache,
            kv,
            self.kv_a_norm,
            batch.rope,
            cache,
            batch.slots,
            scale=self.kv_scale,
            eps=eps,
        )
        k_nope, values = issue(
            f"{name}.kv_b", backend.keys_and_values, latent, self.uk[heads], self.uv[heads]
        )
        return issue(
            f"{name}.attention",
            backend.causal_attention,
            queries,
            k_nope,
            k_rope,
            values,
            batch.rows,
            # Scaling the queries scales their scores.
            scale=self.softmax_scale * self.q_scale,
        )
