"""One layer: two attentions, two dense FFNs, and the MoE on its shortcut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from runtime_npu.batch import Batch
from runtime_npu.kv_cache import LatentCache
from runtime_npu.model.attention import Attention
from runtime_npu.model.dense import Dense
from runtime_npu.model.direct import DirectExperts
from runtime_npu.model.issue import Issuer
from runtime_npu.model.moe import Moe
from runtime_npu.model.pieces import Pieces, finish
from runtime_npu.model.shortcut import AwayExperts, LocalExperts, RemoteExperts, Ticket
from runtime_npu.parallel.shard import Shard
from runtime_npu.parallel.world import World
from twin.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class OpenPass:
    """A pass through a layer but for its closing add: the main branch, and the MoE's ticket."""

    residual: torch.Tensor
    dense: torch.Tensor
    ticket: Ticket


class Layer(nn.Module):
    """A shortcut-connected MoE layer.

    h1 = x + A0(norm(x)); u = norm(h1); h2 = h1 + D0(u); h3 = h2 + A1(norm(h2));
    out = h3 + D1(norm(h3)) + MoE(u).

    A pass is begun and closed apart: where the experts are on other dies (AFD), other
    micro-batches run while u is away.
    """

    def __init__(
        self,
        spec: ModelSpec,
        dtype: torch.dtype,
        chunk_tokens: int | None,
        shard: Shard,
        world: World,
    ) -> None:
        super().__init__()
        self.eps = spec.rms_norm_eps
        groups = world.groups
        self._attentions = tuple(
            Attention(spec, f"attention.{j}", dtype, shard, groups) for j in (0, 1)
        )
        self._denses = tuple(Dense(spec, f"dense.{j}", dtype, shard, groups) for j in (0, 1))
        # Registered under the schedule's names, so that a weight is found by its name.
        self.attention = nn.ModuleList(self._attentions)
        self.dense = nn.ModuleList(self._denses)
        self._experts: LocalExperts | AwayExperts
        if shard.holds_router:
            self.moe = Moe(spec, dtype, shard, groups)
        if shard.holds_experts:
            self._experts = LocalExperts(self.moe, chunk_tokens)
        elif shard.holds_router:
            self._experts = DirectExperts(self.moe, world.links, chunk_tokens)
        else:
            self._experts = RemoteExperts(world.links[0], chunk_tokens)

    def begin(
        self, issue: Issuer, x: torch.Tensor, batch: Batch, caches: Sequence[LatentCache]
    ) -> OpenPass:
        """Rows [T, hidden] up to the closing add; ``caches`` are those of both attentions."""
        with issue.stages():
            return finish(self.pieces(issue, x, batch, caches))

    def pieces(
        self, issue: Issuer, x: torch.Tensor, batch: Batch, caches: Sequence[LatentCache]
    ) -> Pieces[OpenPass]:
        """:meth:`begin`, cut behind its exchanges, wherever the issuer's ops now run."""
        backend, eps = issue.backend, self.eps
        first, second = self._attentions
        normed = issue("attention.0.input_norm", backend.rms_norm, x, first.input_norm, eps)
        attended = yield from first.pieces(issue, normed, batch, caches[0])
        u, h1 = issue(
            "attention.0.post_norm", backend.add_rms_norm, attended, x, first.post_norm, eps
        )
        ticket = yield from self._experts.start(issue, u, batch.phase)
        dense = yield from self._denses[0].pieces(issue, u)
        normed, h2 = issue(
            "attention.1.input_norm", backend.add_rms_norm, dense, h1, second.input_norm, eps
        )
        attended = yield from second.pieces(issue, normed, batch, caches[1])
        normed, h3 = issue(
            "attention.1.post_norm", backend.add_rms_norm, attended, h2, second.post_norm, eps
        )
        return OpenPass(h3, (yield from self._denses[1].pieces(issue, normed)), ticket)

    def close(self, issue: Issuer, opened: OpenPass) -> torch.Tensor:
        """The layer's output [T, hidden]."""
        shortcut = self._experts.finish(issue, opened.ticket)
        with issue.last_stage():
            return issue("add", issue.backend.add, opened.residual, opened.dense, shortcut)
