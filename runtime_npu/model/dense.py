"""The dense feed-forward network."""

from __future__ import annotations

import torch
from torch import nn

from runtime_npu.model.issue import Issuer
from runtime_npu.model.parameters import parameter
from runtime_npu.model.pieces import Pieces, finish
from runtime_npu.parallel.shard import Shard
from runtime_npu.parallel.world import Groups
from twin.model_spec import ModelSpec


class Dense(nn.Module):
    """SwiGLU FFN; ``gate_up`` holds the gate's rows, then the up projection's.

    Split over dies, each computes its inner channels for the rows of all; dies of a KVP
    group hold the same rows already.  In int8 each weight has a scale per output channel, and
    every row of activations one of its own.
    """

    def __init__(
        self, spec: ModelSpec, name: str, dtype: torch.dtype, shard: Shard, groups: Groups
    ) -> None:
        super().__init__()
        self.name = name
        self._group = groups["dense_tp"]
        self._rows_are_shared = groups["kvp"].size > 1
        width = len(shard.dense)
        self._dtype = dtype
        self._is_int8 = shard.int8_ffns
        stored = torch.int8 if self._is_int8 else dtype
        self.gate_up = parameter(2 * width, spec.hidden_size, dtype=stored)
        self.down = parameter(spec.hidden_size, width, dtype=stored)
        if self._is_int8:
            self.gate_up_scale = parameter(2 * width, dtype=torch.float32)
            self.down_scale = parameter(spec.hidden_size, dtype=torch.float32)

    def forward(self, issue: Issuer, x: torch.Tensor) -> torch.Tensor:
        """Rows [T, hidden] to rows [T, hidden]."""
        return finish(self.pieces(issue, x))

    def pieces(self, issue: Issuer, x: torch.Tensor) -> Pieces[torch.Tensor]:
        """:meth:`forward`, cut behind its exchanges."""
        backend, group = issue.backend, self._group
        if group.size > 1 and not self._rows_are_shared:
            x = yield from issue.exchange(f"{self.name}.all_gather", backend.all_gather, x, group)
        out = self._int8(issue, x) if self._is_int8 else self._plain(issue, x)
        if group.size == 1:
            return out
        if self._rows_are_shared:
            op, call = "all_reduce", backend.all_reduce
        else:
            op, call = "reduce_scatter", backend.reduce_scatter
        return (yield from issue.exchange(f"{self.name}.{op}", call, out, group))

    def _plain(self, issue: Issuer, x: torch.Tensor) -> torch.Tensor:
        backend = issue.backend
        both = issue(f"{self.name}.gate_up", backend.linear, x, self.gate_up)
        inner = issue(f"{self.name}.swiglu", backend.swiglu, both)
        return issue(f"{self.name}.down", backend.linear, inner, self.down)

    def _int8(self, issue: Issuer, x: torch.Tensor) -> torch.Tensor:
        backend = issue.backend
        rows = issue(f"{self.name}.quant", backend.dynamic_quant, x)
        both = issue(f"{self.name}.gate_up", backend.int_matmul, rows.values, self.gate_up)
        inner = issue(
            f"{self.name}.swiglu",
            backend.dequant_swiglu_quant,
            both,
            rows.scale,
            self.gate_up_scale[None],
            torch.tensor([len(x)]),
        )
        return issue(
            f"{self.name}.down",
            backend.quant_matmul,
            inner,
            self.down,
            self.down_scale,
            dtype=self._dtype,
        )
