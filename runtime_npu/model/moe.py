"""The mixture of experts: router, dispatch, experts, combine."""

from __future__ import annotations

import torch
from torch import nn

from runtime_npu.model.issue import Issuer
from runtime_npu.model.parameters import parameter
from runtime_npu.parallel.shard import Shard
from runtime_npu.parallel.world import Groups
from twin.model_spec import ModelSpec


class Moe(nn.Module):
    """Routed experts and zero experts (ids from ``n_routed_experts`` on: identity).

    The experts are spread over the dies of a group; zero experts are served where the row is.
    ``router`` and ``correction_bias`` are fp32 whatever the model's dtype.  ``w13`` holds,
    per expert, the gate's rows, then the up projection's.
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
        self.w13 = parameter(len(shard.experts), 2 * width, hidden, dtype=dtype)
        self.w2 = parameter(len(shard.experts), hidden, width, dtype=dtype)

    def forward(self, issue: Issuer, x: torch.Tensor) -> torch.Tensor:
        """Rows [T, hidden] to rows [T, hidden]."""
        backend = issue.backend
        wide = issue("moe.cast", backend.cast, x)
        logits = issue("moe.router_matmul", backend.router_matmul, wide, self.router)
        weights, ids = issue(
            "moe.topk", backend.topk_gating, logits, self.correction_bias, self.topk, self.scale
        )
        sent = issue("moe.dispatch", backend.dispatch, x, ids, self.experts, self._group)
        both = issue("moe.gmm1", backend.grouped_matmul, sent.rows, self.w13, sent.counts)
        inner = issue("moe.swiglu", backend.swiglu, both)
        rows = issue("moe.gmm2", backend.grouped_matmul, inner, self.w2, sent.counts)
        return issue(
            "moe.combine", backend.combine, rows, sent, x, ids, weights, experts=self.experts
        )
