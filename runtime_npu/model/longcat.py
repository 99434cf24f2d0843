"""The whole model: embedding, layers, final norm, lm_head, sampling, MTP passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from runtime_npu.backends.base import Backend
from runtime_npu.batch import Step
from runtime_npu.kv_cache import KvCache
from runtime_npu.model.chunks import split_rows
from runtime_npu.model.issue import ChainIssuer, Issuer, layer_weight, no_weight
from runtime_npu.model.layer import Layer, OpenPass
from runtime_npu.model.mtp import MtpHead
from runtime_npu.model.parameters import parameter
from runtime_npu.model.pieces import Pieces, in_turn
from runtime_npu.parallel.shard import shard_of
from runtime_npu.parallel.world import World, alone
from runtime_npu.plan import PLAIN, PLAIN_PREFILL, LayerPlan, PrefillOrder
from twin.graph.role_writer import Pass, layer_passes
from twin.model_spec import ModelSpec
from twin.names import parse_weight


@dataclass(frozen=True, slots=True)
class StepOutput:
    """``hidden`` [T, hidden] behind the final norm (an MTP pass's own; in a planned prefill of
    the last rows alone); ``logits`` [B, vocabulary] and ``tokens`` [B] of the last rows.
    """  # noqa: D205

    hidden: torch.Tensor
    logits: torch.Tensor
    tokens: torch.Tensor


class LongcatFlash(nn.Module):
    """LongCat-Flash on a backend, or with AFD all of it but the experts.

    This is the rank of ``world``'s part of it; decode follows ``plan``, prefill ``prefill``.
    ``next_n`` is the number of MTP passes; without any there is no MTP head.
    Parameters lie on the meta device until a checkpoint is loaded.
    """

    def __init__(
        self,
        spec: ModelSpec,
        backend: Backend,
        plan: LayerPlan = PLAIN,
        world: World | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        prefill: PrefillOrder = PLAIN_PREFILL,
        next_n: int = 0,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.next_n = next_n
        self.backend = backend
        world = world or alone()
        self.shard = shard_of(spec, world.deployment, world.rank)
        self._lm_head_group, self._embed_group = (
            world.groups[name] for name in ("lm_head_tp", "embed_tp")
        )
        self.embed = parameter(len(self.shard.embed), spec.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(
            Layer(spec, dtype, prefill.chunk_tokens, self.shard, world)
            for _ in range(spec.num_layers)
        )
        self.final_norm = parameter(spec.hidden_size, dtype=dtype)
        self.lm_head = parameter(len(self.shard.lm_head), spec.hidden_size, dtype=dtype)
        self.mtp = MtpHead(spec, dtype, self.shard, world.groups) if next_n else None
        afd = world.deployment.afd
        self._decode_passes = layer_passes(spec.num_layers, afd.micro_batches if afd else 1)
        self._decode = [
            Issuer(backend, run.prefix, plan, partial(self._weight, run))
            for run in self._decode_passes
        ]
        self.prefill = prefill
        self._prefill_passes = layer_passes(spec.num_layers, prefill.micro_batches)
        self._prefill = [
            ChainIssuer(backend, run.prefix, prefill.exchanges) for run in self._prefill_passes
        ]
        outside = replace(PLAIN, prefetches=plan.prefetches)
        self._outside_prefill = Issuer(backend, "", PLAIN, no_weight)
        find = partial(self._weight, self._decode_passes[-1])
        self._outside_decode = Issuer(backend, "", outside, find)
        blocks = [f"mtp.{number}." for number in range(next_n)]
        self._mtp_prefill = [Issuer(backend, "", PLAIN, no_weight, block=b) for b in blocks]
        self._mtp_decode = [Issuer(backend, "", outside, find, block=b) for b in blocks]

    def forward(self, step: Step, cache: KvCache) -> StepOutput:
        """One pass over the rows of ``step``, whose KV goes to ``cache``."""
        issue = self._outside_prefill if step.phase == "prefill" else self._outside_decode
        layers = self._prefill_layers if step.phase == "prefill" else self._layers
        x = layers(self._embedded(issue, step, self.embed), step, cache)
        last_rows: torch.Tensor | slice = step.last_rows
        if step.phase == "prefill" and self.prefill.is_planned:
            x = issue("last_tokens", self.backend.take_rows, x, step.last_rows)
            last_rows = slice(None)
        eps = self.spec.rms_norm_eps
        hidden = issue("final_norm", self.backend.rms_norm, x, self.final_norm, eps)
        logits = self._logits(issue, hidden[last_rows])
        return StepOutput(hidden, logits, issue("sample", self.backend.sample, logits, step.draw))

    def draft(self, number: int, step: Step, hidden: torch.Tensor, cache: KvCache) -> StepOutput:
        """MTP pass ``number`` over the rows of ``step``, whose tokens are those that follow.

        ``hidden`` [T, hidden] is what the main model or the pass before gave at these rows.
        """
        assert self.mtp is not None
        issuers = self._mtp_prefill if step.phase == "prefill" else self._mtp_decode
        issue, (batch,) = issuers[number], step.batches
        embedded = self._embedded(issue, step, self.mtp.embed)
        own_cache = cache.attentions[2 * len(self.layers) + number]
        out: torch.Tensor = self.mtp(issue, embedded, hidden, batch, own_cache)
        logits = self._logits(issue, out[step.last_rows])
        return StepOutput(out, logits, issue("sample", self.backend.sample, logits, None))

    def _embedded(self, issue: Issuer, step: Step, table: torch.Tensor) -> torch.Tensor:
        backend, group = self.backend, self._embed_group
        x = issue("embed", backend.embed, step.tokens, table, self.shard.embed.start)
        if group.size > 1:
            x = issue("embed_reduce_scatter", backend.reduce_scatter, x, group)
        return x

    def _layers(self, x: torch.Tensor, step: Step, cache: KvCache) -> torch.Tensor:
        """All passes; one is closed when its micro-batch enters the next layer."""
        rows = list(split_rows(x, step.heights))
        under_way: dict[int, tuple[Layer, Issuer, OpenPass]] = {}

        def close(part: int) -> None:
            layer, issue, opened = under_way.pop(part)
            rows[part] = layer.close(issue, opened)

        for run, issue in zip(self._decode_passes, self._decode, strict=True):
            part = run.micro_batch
            if part in under_way:
                close(part)
            layer = self.layers[run.layer]
            assert isinstance(layer, Layer)
            caches = [
                replace(own, micro_batch=part)
                for own in cache.attentions[2 * run.layer : 2 * run.layer + 2]
            ]
            opened = layer.begin(issue, rows[part], step.batches[part], caches)
            under_way[part] = layer, issue, opened
        for part in range(len(rows)):
            close(part)
        return torch.cat(rows)

    def _prefill_layers(self, x: torch.Tensor, step: Step, cache: KvCache) -> torch.Tensor:
        """Micro-batches in turn: each gives way behind its exchanges."""
        rows = split_rows(x, step.heights)
        chains = [self._chain(part, rows[part], step, cache) for part in range(len(rows))]
        return torch.cat(in_turn(chains))

    def _chain(
        self, part: int, x: torch.Tensor, step: Step, cache: KvCache
    ) -> Pieces[torch.Tensor]:
        """All layers of one micro-batch."""
        for run, issue in zip(self._prefill_passes, self._prefill, strict=True):
            if run.micro_batch == part:
                layer = self.layers[run.layer]
                assert isinstance(layer, Layer)
                caches = cache.attentions[2 * run.layer : 2 * run.layer + 2]
                opened = yield from layer.pieces(issue, x, step.batches[part], caches)
                x = layer.close(issue, opened)
        return x

    def _logits(self, issue: Issuer, rows: torch.Tensor) -> torch.Tensor:
        """Logits [B, vocabulary] of ``rows`` [B, hidden]."""
        backend, group = self.backend, self._lm_head_group
        if group.size > 1:
            rows = issue("lm_head_all_gather", backend.all_gather, rows, group)
        logits = issue("lm_head", backend.linear, rows, self.lm_head)
        if group.size > 1:
            parts = torch.unflatten(logits, 0, (group.size, -1))
            parts = issue("lm_head_all_to_all", backend.all_to_all, parts, group)
            logits = parts.transpose(0, 1).flatten(1)
        return logits

    def _weight(self, run: Pass, name: str) -> torch.Tensor | None:
        """What a prefetch in a pass fetches; ``None``: nothing (left)."""
        weight = parse_weight(name).weight
        if weight == "lm_head" or weight.startswith("mtp."):
            # Outside the layers: only the last pass is near enough to them.
            return self.get_parameter(weight) if run.is_last else None
        return layer_weight(self.layers, self._decode_passes, run, name)
