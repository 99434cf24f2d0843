"""The mixture of experts: router, dispatch, experts, combine."""

from __future__ import annotations

import torch
from torch import nn

from runtime_npu.backends.base import Dispatched
from runtime_npu.model.issue import Issuer
from runtime_npu.model.parameters import parameter
from runtime_npu.parallel.shard import Shard
from runtime_npu.parallel.world import Groups
from twin.model_spec import ModelSpec


class Moe(nn.Module):
    """Routed experts and zero experts (ids from ``n_routed_experts`` on: identity).

    The experts are spread over the dies of a group; zero experts are served where the row is.
    ``router`` and ``correction_bias`` are fp32 whatever the model's dtype.  ``w13`` holds,
    per expert, the gate's rows, then the up projection's.  In int8 each expert's weights have
    a scale per output channel, and every row that is sent one of its own.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, shard: Shard, groups: Groups) -> None:
        super().__init__()
        self._group = groups["ep"]
        self.experts = spec.n_routed_experts
        self.topk = spec.moe_topk
        self.scale = spec.routed_scaling_factor
        hidden, width = spec.hidden_size, spec.expert_ffn_hidden_size
        self.router = parameter(spec.router_width, hidden, dtype=torch.float32)
        self.correction_bias = parameter(spec.router_width, dtype=torch.float32)
        held = len(shard.experts)
        self._dtype = dtype
        self._is_int8 = shard.int8_ffns
        stored = torch.int8 if self._is_int8 else dtype
        self.w13 = parameter(held, 2 * width, hidden, dtype=stored)
        self.w2 = parameter(held, hidden, width, dtype=stored)
        if self._is_int8:
            self.w13_scale = parameter(held, 2 * width, dtype=torch.float32)
            self.w2_scale = parameter(held, hidden, dtype=torch.float32)

    def forward(self, issue: Issuer, x: torch.Tensor) -> torch.Tensor:
        """Rows [T, hidden] to rows [T, hidden]."""
        backend = issue.backend
        wide = issue("moe.cast", backend.cast, x)
        logits = issue("moe.router_matmul", backend.router_matmul, wide, self.router)
        weights, ids = issue(
            "moe.topk", backend.topk_gating, logits, self.correction_bias, self.topk, self.scale
        )
        sent, rows = self._int8(issue, x, ids) if self._is_int8 else self._plain(issue, x, ids)
        return issue(
            "moe.combine", backend.combine, rows, sent, x, ids, weights, experts=self.experts
        )

    def _plain(
        self, issue: Issuer, x: torch.Tensor, ids: torch.Tensor
    ) -> tuple[Dispatched, torch.Tensor]:
        """The rows that came, and what this rank's experts gave for them."""
        backend = issue.backend
        sent = issue("moe.dispatch", backend.dispatch, x, ids, self.experts, self._group)
        both = issue("moe.gmm1", backend.grouped_matmul, sent.rows, self.w13, sent.counts)
        inner = issue("moe.swiglu", backend.swiglu, both)
        return sent, issue("moe.gmm2", backend.grouped_matmul, inner, self.w2, sent.counts)

    def _int8(
        self, issue: Issuer, x: torch.Tensor, ids: torch.Tensor
    ) -> tuple[Dispatched, torch.Tensor]:
        backend = issue.backend
        sent, scale = issue(
            "moe.dispatch", backend.dispatch_quantised, x, ids, self.experts, self._group
        )
        counts = sent.counts
        both = issue("moe.gmm1", backend.grouped_int_matmul, sent.rows, self.w13, counts)
        inner = issue(
            "moe.swiglu", backend.dequant_swiglu_quant, both, scale, self.w13_scale, counts
        )
        rows = issue(
            "moe.gmm2",
            backend.grouped_quant_matmul,
            inner,
            self.w2,
            self.w2_scale,
            counts,
            dtype=self._dtype,
        )
        return sent, rows
