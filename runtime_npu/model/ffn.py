"""The FFN die of an AFD deployment: the experts of all layers, and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from runtime_npu.backends.base import Backend
from runtime_npu.model.chunks import chunks
from runtime_npu.model.issue import Issuer, layer_weight, no_weight
from runtime_npu.model.moe import Moe
from runtime_npu.model.service import DirectService, Leave, PairService, Service
from runtime_npu.parallel.shard import Shard, shard_of
from runtime_npu.parallel.world import Groups, World
from runtime_npu.plan import PLAIN, PLAIN_PREFILL, LayerPlan, PrefillOrder
from twin.graph.role_writer import layer_passes
from twin.model_spec import ModelSpec
from twin.workload import Phase


class FfnLayer(nn.Module):
    """A layer's experts, registered under the schedule's names."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, shard: Shard, groups: Groups) -> None:
        super().__init__()
        self.moe = Moe(spec, dtype, shard, groups)


class FfnDie(nn.Module):
    """Serves the attention dies at the other end of the world's links, pass by pass.

    It makes none of the ``next_n`` drafts, but learns them with all ranks.
    """

    def __init__(
        self,
        spec: ModelSpec,
        backend: Backend,
        plan: LayerPlan,
        world: World,
        *,
        dtype: torch.dtype = torch.float32,
        prefill: PrefillOrder = PLAIN_PREFILL,
        next_n: int = 0,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.next_n = next_n
        self.prefill = prefill
        self.backend = backend
        self.dtype = dtype
        self.shard = shard_of(spec, world.deployment, world.rank)
        self.layers = nn.ModuleList(
            FfnLayer(spec, dtype, self.shard, world.groups) for _ in range(spec.num_layers)
        )
        afd = world.deployment.afd
        assert afd is not None
        kind = DirectService if world.deployment.is_direct else PairService
        self._service: Service = kind(world.links, spec.hidden_size, dtype)
        self._ahead = world.deployment.passes_ahead
        self._decode_passes = passes = layer_passes(spec.num_layers, afd.micro_batches)
        self._decode = [
            Issuer(backend, run.prefix, plan, partial(layer_weight, self.layers, passes, run))
            for run in passes
        ]
        self._prefill_passes = layer_passes(spec.num_layers, 1)
        self._prefill = [
            Issuer(backend, run.prefix, PLAIN, no_weight) for run in self._prefill_passes
        ]

    def forward(self, phase: Phase, heights: Sequence[int]) -> None:
        """One pass over all layers: ``heights`` are an attention die's rows by micro-batch.

        Those of a prefill come in chunks.
        """
        passes, issuers, most = self._decode_passes, self._decode, None
        ahead = self._ahead
        if phase == "prefill":
            passes, issuers, ahead = self._prefill_passes, self._prefill, 0
            most = self.prefill.chunk_tokens
        computed: deque[Leave] = deque()
        for run, issue in zip(passes, issuers, strict=True):
            layer = self.layers[run.layer]
            assert isinstance(layer, FfnLayer)
            for label, height in chunks(heights[run.micro_batch], most):
                computed.append(self._service.serve(issue, layer.moe, height, label))
                if len(computed) > ahead:
                    computed.popleft()()
        for leave in computed:
            leave()
