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

    def __init__(self, spec: ModelSpec, name: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.name = name
        heads, hidden = spec.num_attention_heads, spec.hidden_size
        q_rank, kv_rank = spec.q_lora_rank, spec.kv_lora_rank
        self.input_norm = parameter(hidden, dtype=dtype)
        self.q_a = parameter(q_rank, hidden, dtype=dtype)
        self.q_a_norm = parameter(q_rank, dtype=dtype)
        self.q_b = parameter(heads * spec.qk_head_dim, q_rank, dtype=dtype)
        self.kv_a = parameter(spec.kv_width, hidden, dtype=dtype)
        self.kv_a_norm = parameter(kv_rank, dtype=dtype)
        self.uk = parameter(heads, spec.qk_nope_head_dim, kv_rank, dtype=dtype)
        self.uv = parameter(heads, kv_rank, spec.v_head_dim, dtype=dtype)
        self.o_proj = parameter(hidden, spec.o_proj_width, dtype=dtype)
        self.post_norm = parameter(hidden, dtype=dtype)
        self.q_scale = math.sqrt(hidden / q_rank) if spec.mla_scale_q_lora else 1.0
        self.kv_scale = math.sqrt(hidden / kv_rank) if spec.mla_scale_kv_lora else 1.0
        self.softmax_scale = spec.qk_head_dim**-0.5

    def forward(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> torch.Tensor:
        """Attend from ``normed`` rows [T, hidden]; the projected output [T, hidden]."""
        attend = self._prefill if batch.phase == "prefill" else self._decode
        heads = attend(issue, normed, batch, cache)
        return issue(f"{self.name}.o_proj", issue.backend.linear, heads.flatten(1), self.o_proj)

    def _decode(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> torch.Tensor:
        backend = issue.backend
        q_latent, q_rope = issue(
            f"{self.name}.prolog",
            backend.mla_prolog,
            normed,
            self._prolog_weights(),
            batch.rope,
            cache,
            batch.slots,
        )
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

    def _prefill(
        self, issue: Issuer, normed: torch.Tensor, batch: Batch, cache: LatentCache
    ) -> torch.Tensor:
        inputs = issue(
            f"{self.name}.prolog",
            issue.backend.prefill_prolog,
            normed,
            self._prolog_weights(),
            batch.rope,
            cache,
            batch.slots,
        )
        return issue(
            f"{self.name}.attention",
            issue.backend.prefill_attention,
            inputs,
            self.uk,
            self.uv,
            batch.rows,
            scale=self.softmax_scale,
        )

    def _prolog_weights(self) -> PrologWeights:
        return PrologWeights(
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
