"""What the host would read from a device, where there is none."""

from __future__ import annotations

import torch
from typing_extensions import override

from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_issue import Listener, Namer
from runtime_npu.backends.npu_order import Order
from runtime_npu.backends.prefill import Routed
from runtime_npu.npu.forms import Forms
from twin.model_spec import ModelSpec


class BalancedBackend(NpuBackend):
    """The npu backend, whose host reads that every expert of ``spec`` gets equally many rows."""

    def __init__(
        self,
        spec: ModelSpec,
        forms: Forms,
        order: Order,
        communicator_name: Namer,
        listener: Listener,
    ) -> None:
        super().__init__(forms, order, communicator_name, listener)
        self._real_share = spec.real_topk / spec.moe_topk
        self._copies = 0

    @override
    def init_routing(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
        self._copies = round(ids.numel() * self._real_share)
        return super().init_routing(x, ids, experts)

    @override
    def init_routing_quantised(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
        self._copies = round(ids.numel() * self._real_share)
        return super().init_routing_quantised(x, ids, experts)

    @override
    def _on_host(self, sums: torch.Tensor) -> torch.Tensor:
        super()._on_host(sums)
        ranks = sums.shape[1]
        share, rest = divmod(self._copies, ranks)
        return torch.tensor([[share + (rank < rest) for rank in range(ranks)]] * 2)
