"""The FFN die of an AFD deployment: the experts of all layers, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from runtime_npu.backends.base import Backend
from runtime_npu.model.chunks import chunks
from runtime_npu.model.issue import Issuer, layer_weight, no_weight
from runtime_npu.model.moe import Moe
from runtime_npu.parallel.shard import Shard, shard_of
from runtime_npu.parallel.world import Groups, World
from runtime_npu.plan import PLAIN, PLAIN_PREFILL, LayerPlan, PrefillOrder
from runtime_npu.record import Event
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
        self._links = world.links
        self.shard = shard_of(spec, world.deployment, world.rank)
        self.layers = nn.ModuleList(
            FfnLayer(spec, dtype, self.shard, world.groups) for _ in range(spec.num_layers)
        )
        afd = world.deployment.afd
        assert afd is not None
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
        if phase == "prefill":
            passes, issuers = self._prefill_passes, self._prefill
            most = self.prefill.chunk_tokens
        for run, issue in zip(passes, issuers, strict=True):
            layer = self.layers[run.layer]
            assert isinstance(layer, FfnLayer)
            for label, height in chunks(heights[run.micro_batch], most):
                self._serve(issue, layer.moe, height, label)

    def _serve(self, issue: Issuer, moe: Moe, height: int, label: str) -> None:
        backend, arrived = self.backend, self._arrived(issue, height, label)
        u = torch.cat([rows for rows, _ in arrived])
        with issue.stages():
            for _, event in arrived:
                backend.wait(event)
            outputs = moe(issue, u, f"moe{label}")
            computed = backend.signal()
        for peer, rows in enumerate(torch.split(outputs, height)):
            with issue.link(f"link{self._suffix(peer)}"):
                backend.wait(computed)
                name = f"afd{label}.send{self._suffix(peer)}"
                issue(name, backend.send, rows, self._links[peer])
                self._prefetch_behind("afd.send", issue, peer, backend.signal())

    def _arrived(self, issue: Issuer, height: int, label: str) -> list[tuple[torch.Tensor, Event]]:
        """The rows [height, hidden] of each attention die, and the event behind their arrival."""
        backend, shape = self.backend, (height, self.spec.hidden_size)
        arrived = []
        for peer, link in enumerate(self._links):
            with issue.link(f"link{self._suffix(peer)}"):
                name = f"afd{label}.recv{self._suffix(peer)}"
                rows = issue(name, backend.receive, shape, self.dtype, link)
                arrived.append((rows, backend.signal()))
                self._prefetch_behind("afd.recv", issue, peer, arrived[-1][1])
        return arrived

    def _suffix(self, peer: int) -> str:
        """Transfers with several attention dies run side by side, each under a name of its own."""
        return "" if len(self._links) == 1 else f".{peer}"

    def _prefetch_behind(self, op: str, issue: Issuer, peer: int, event: Event) -> None:
        """What waits for all of the side-by-side transfers ``op`` hangs on the last of them."""
        if 1 < len(self._links) == peer + 1:
            issue.prefetch(op, event)
