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
    per expert, the gate's rows, then the up projection's.  In int8 each expert's weights have
    a scale per output channel, and every row that is sent one of its own.

    Under AFD's direct transport the router is on attention dies, the experts on FFN dies: each
    has its part alone.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, shard: Shard, groups: Groups) -> None:
        super().__init__()
        self.group = groups["ep"]
        self.experts = spec.n_routed_experts
        self.topk = spec.moe_topk
        self.scale = spec.routed_scaling_factor
        self._dtype = dtype
        self.is_int8 = shard.int8_ffns
        if shard.holds_router:
            self.router = parameter(spec.router_width, spec.hidden_size, dtype=torch.float32)
            self.correction_bias = parameter(spec.router_width, dtype=torch.float32)
        if shard.holds_experts:
            self._add_experts(spec, dtype, len(shard.experts))

    def _add_experts(self, spec: ModelSpec, dtype: torch.dtype, held: int) -> None:
        hidden, width = spec.hidden_size, spec.expert_ffn_hidden_size
        stored = torch.int8 if self.is_int8 else dtype
        self.w13 = parameter(held, 2 * width, hidden, dtype=stored)
        self.w2 = parameter(held, hidden, width, dtype=stored)
        if self.is_int8:
            self.w13_scale = parameter(held, 2 * width, dtype=torch.float32)
            self.w2_scale = parameter(held, hidden, dtype=torch.float32)

    def forward(self, issue: Issuer, x: torch.Tensor, block: str = "moe") -> torch.Tensor:
        """Rows [T, hidden] to rows [T, hidden], by dispatch and combine; ops are ``block.topk``."""
        backend = issue.backend
        weights, ids = self.route(issue, x, block)
        to_experts = (x, ids, self.experts, self.group)
        scale = None
        if self.is_int8:
            sent, scale = issue(f"{block}.dispatch", backend.dispatch_quantised, *to_experts)
        else:
            sent = issue(f"{block}.dispatch", backend.dispatch, *to_experts)
        rows = self.compute(issue, block, sent.rows, scale, sent.counts)
        return issue(
            f"{block}.combine", backend.combine, rows, sent, x, ids, weights, experts=self.experts
        )

    def route(
        self, issue: Issuer, x: torch.Tensor, block: str = "moe"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(weights, expert ids) [T, topk] of rows ``x`` [T, hidden]."""
        backend = issue.backend
        wide = issue(f"{block}.cast", backend.cast, x)
        logits = issue(f"{block}.router_matmul", backend.router_matmul, wide, self.router)
        return issue(
            f"{block}.topk",
            backend.topk_gating,
            logits,
            self.correction_bias,
            self.topk,
            self.scale,
        )

    def compute(
        self,
        issue: Issuer,
        block: str,
        rows: torch.Tensor,
        row_scale: torch.Tensor | None,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        """What this rank's experts give for ``rows`` [N, hidden], sorted by local expert.

        ``counts`` [local experts] says how many each got, ``row_scale`` [N] are the scales of
        int8 rows.  Ops are named ``block.gmm1`` and so on.
        """
        backend = issue.backend
        if row_scale is None:
            both = issue(f"{block}.gmm1", backend.grouped_matmul, rows, self.w13, counts)
            inner = issue(f"{block}.swiglu", backend.swiglu, both)
            return issue(f"{block}.gmm2", backend.grouped_matmul, inner, self.w2, counts)
        both = issue(f"{block}.gmm1", backend.grouped_int_matmul, rows, self.w13, counts)
        quantised = issue(
            f"{block}.swiglu",
            backend.dequant_swiglu_quant,
            both,
            row_scale,
            self.w13_scale,
            counts,
        )
        return issue(
            f"{block}.gmm2",
            backend.grouped_quant_matmul,
            quantised,
            self.w2,
            self.w2_scale,
            counts,
            dtype=self._dtype,
        )
