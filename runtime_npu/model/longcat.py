"""The whole model: embedding, layers, final norm, lm_head, greedy sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from runtime_npu.backends.base import Backend
from runtime_npu.batch import Batch
from runtime_npu.kv_cache import KvCache
from runtime_npu.model.issue import Issuer, no_weight
from runtime_npu.model.layer import Layer
from runtime_npu.model.parameters import parameter
from runtime_npu.plan import PLAIN, LayerPlan
from twin.model_spec import ModelSpec
from twin.names import parse_weight


@dataclass(frozen=True, slots=True)
class StepOutput:
    """``hidden`` [T, hidden] behind the final norm; ``logits`` [B, vocabulary] and
    ``tokens`` [B] of each sequence's last row.
    """  # noqa: D205

    hidden: torch.Tensor
    logits: torch.Tensor
    tokens: torch.Tensor


class LongcatFlash(nn.Module):
    """LongCat-Flash on a backend; decode follows ``plan``, prefill runs plainly.

    Parameters lie on the meta device until a checkpoint is loaded.
    """

    def __init__(
        self,
        spec: ModelSpec,
        backend: Backend,
        plan: LayerPlan = PLAIN,
        *,
        dtype: torch.dtype = torch.float32,
        chunk_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.backend = backend
        self.embed = parameter(spec.vocab_size, spec.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(
            Layer(spec, dtype, chunk_tokens) for _ in range(spec.num_layers)
        )
        self.final_norm = parameter(spec.hidden_size, dtype=dtype)
        self.lm_head = parameter(spec.vocab_size, spec.hidden_size, dtype=dtype)
        names = [f"layer.{index}." for index in range(spec.num_layers)]
        self._prefill = [Issuer(backend, name, PLAIN, no_weight) for name in names]
        self._decode = [
            Issuer(backend, name, plan, partial(self._weight, index))
            for index, name in enumerate(names)
        ]
        outside = replace(PLAIN, prefetches=plan.prefetches)
        self._outside_prefill = Issuer(backend, "", PLAIN, no_weight)
        self._outside_decode = Issuer(
            backend, "", outside, partial(self._weight, spec.num_layers - 1)
        )

    def forward(self, batch: Batch, cache: KvCache) -> StepOutput:
        """One pass over the rows of ``batch``, whose KV goes to ``cache``."""
        backend = self.backend
        issue, issuers = self._outside_decode, self._decode
        if batch.phase == "prefill":
            issue, issuers = self._outside_prefill, self._prefill
        x = issue("embed", backend.embed, batch.tokens, self.embed)
        for index, layer in enumerate(self.layers):
            caches = cache.attentions[2 * index : 2 * index + 2]
            x = layer(issuers[index], x, batch, caches)
        hidden = issue("final_norm", backend.rms_norm, x, self.final_norm, self.spec.rms_norm_eps)
        logits = issue("lm_head", backend.linear, hidden[batch.last_rows], self.lm_head)
        return StepOutput(hidden, logits, issue("sample", backend.sample, logits))

    def _weight(self, layer: int, name: str) -> torch.Tensor | None:
        """What a prefetch in ``layer`` fetches; ``None``: nothing (left)."""
        parsed = parse_weight(name)
        last = len(self.layers) - 1
        if parsed.weight == "lm_head":
            # Outside the layers: only the last layer is near enough to it.
            return self.lm_head if layer == last else None
        at = layer + parsed.is_next
        return self.layers[at].get_parameter(parsed.weight) if at <= last else None
