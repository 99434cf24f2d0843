"""The npu backend's products and MoE."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from typing_extensions import override

from runtime_npu.backends.base import Dispatched
from runtime_npu.backends.npu_issue import NpuIssue
from runtime_npu.npu import matmul_ops, moe_ops, vector_ops
from runtime_npu.npu.moe_ops import Exchange, Received
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.quantise import Quantised


@dataclass(frozen=True, slots=True)
class DispatchedOnDevice(Dispatched):
    """Dispatched rows; what only the device knows of them goes to combine as it is."""

    handle: Received
    exchange: Exchange


class NpuFfn(NpuIssue):
    """Products of floats and of int8, routing, and the experts' exchange."""

    _router_width = 0

    @override
    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._wrote(matmul_ops.matmul(x, self._forms.of(weight)))

    @override
    def swiglu(self, x: torch.Tensor) -> torch.Tensor:
        return self._wrote(vector_ops.swiglu(x))

    @override
    def dynamic_quant(self, x: torch.Tensor) -> Quantised:
        values, scale = vector_ops.dynamic_quant(x)
        return Quantised(self._wrote(values), scale)

    @override
    def int_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        form = self._forms.of(weight)
        ones = self._forms.ones(form.shape[1])
        return self._wrote(matmul_ops.quant_matmul_sums(x, form, ones))

    @override
    def dequant_swiglu_quant(
        self,
        x: torch.Tensor,
        row_scale: torch.Tensor,
        weight_scale: torch.Tensor,
        counts: torch.Tensor,
    ) -> Quantised:
        # Counts that the host knows are those of one weight: all rows are its own.
        grouped = None if counts.device.type == "cpu" else counts
        values, scale = vector_ops.dequant_swiglu_quant(
            x, self._forms.of(weight_scale), row_scale, grouped
        )
        return Quantised(self._wrote(values), scale)

    @override
    def quant_matmul(
        self, x: Quantised, weight: torch.Tensor, weight_scale: torch.Tensor, *, dtype: torch.dtype
    ) -> torch.Tensor:
        product = matmul_ops.quant_matmul(
            x.values, self._forms.of(weight), self._forms.of(weight_scale), x.scale, dtype
        )
        return self._wrote(product)

    @override
    def cast(self, x: torch.Tensor) -> torch.Tensor:
        self._read(x)
        return self._wrote(x.to(torch.float32))

    @override
    def router_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._wrote(matmul_ops.matmul(x, self._forms.of(weight)))

    @override
    def topk_gating(
        self, logits: torch.Tensor, correction_bias: torch.Tensor, topk: int, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._router_width = logits.shape[1]
        bias = self._forms.of(correction_bias)
        weights, ids = moe_ops.gating_top_k(logits, bias, topk, scale)
        return self._wrote(weights), ids

    @override
    def dispatch(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, group: Communicator
    ) -> Dispatched:
        return self._dispatch(x, ids, experts, group, quantise=False)

    @override
    def dispatch_quantised(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, group: Communicator
    ) -> tuple[Dispatched, torch.Tensor]:
        sent = self._dispatch(x, ids, experts, group, quantise=True)
        return sent, sent.handle.scales

    def _dispatch(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        experts: int,
        group: Communicator,
        *,
        quantise: bool,
    ) -> DispatchedOnDevice:
        exchange = Exchange(
            group=self._communicator_name(group),
            ranks=group.size,
            rank=group.index,
            experts=experts,
            copies=self._router_width - experts,
            rows=x.shape[0],
        )
        self._read(x)
        handle = moe_ops.dispatch(x, ids, exchange, quantise=quantise)
        self._wrote(handle.rows)
        return DispatchedOnDevice(
            rows=handle.rows,
            counts=handle.counts,
            source=handle.assist,
            order=handle.assist,
            sent=(),
            received=(),
            group=group,
            handle=handle,
            exchange=exchange,
        )

    @override
    def grouped_matmul(
        self, x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        form = self._forms.of(weight)
        return self._wrote(matmul_ops.grouped_matmul(x, form, counts, dtype=x.dtype))

    @override
    def grouped_int_matmul(
        self, x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        form = self._forms.of(weight)
        return self._wrote(matmul_ops.grouped_matmul(x, form, counts, dtype=torch.int32))

    @override
    def grouped_quant_matmul(
        self,
        x: Quantised,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        counts: torch.Tensor,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        product = matmul_ops.grouped_matmul(
            x.values,
            self._forms.of(weight),
            counts,
            scale=self._forms.of(weight_scale),
            row_scale=x.scale,
            dtype=dtype,
        )
        return self._wrote(product)

    @override
    def combine(
        self,
        expert_rows: torch.Tensor,
        dispatched: Dispatched,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        *,
        experts: int,
    ) -> torch.Tensor:
        assert isinstance(dispatched, DispatchedOnDevice)
        assert dispatched.exchange.experts == experts
        self._read(x)
        combined = moe_ops.combine(
            expert_rows, dispatched.handle, x, ids, weights, dispatched.exchange
        )
        return self._wrote(combined)
