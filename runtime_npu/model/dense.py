"""The dense feed-forward network."""

from __future__ import annotations

import torch
from torch import nn

from runtime_npu.model.issue import Issuer
from runtime_npu.model.parameters import parameter
from runtime_npu.parallel.shard import Shard
from runtime_npu.parallel.world import Groups
from twin.model_spec import ModelSpec


class Dense(nn.Module):
    """SwiGLU FFN; ``gate_up`` holds the gate's rows, then the up projection's.

    Split over dies, each computes its inner channels for the rows of all; dies of a KVP
    group hold the same rows already.
    """

    def __init__(
        self, spec: ModelSpec, name: str, dtype: torch.dtype, shard: Shard, groups: Groups
    ) -> None:
        super().__init__()
        self.name = name
        self._group = groups["dense_tp"]
        self._rows_are_shared = groups["kvp"].size > 1
        width = len(shard.dense)
        self.gate_up = parameter(2 * width, spec.hidden_size, dtype=dtype)
        self.down = parameter(spec.hidden_size, width, dtype=dtype)

    def forward(self, issue: Issuer, x: torch.Tensor) -> torch.Tensor:
        """Rows [T, hidden] to rows [T, hidden]."""
        backend, group = issue.backend, self._group
        if group.size > 1 and not self._rows_are_shared:
            x = issue(f"{self.name}.all_gather", backend.all_gather, x, group)
        both = issue(f"{self.name}.gate_up", backend.linear, x, self.gate_up)
        inner = issue(f"{self.name}.swiglu", backend.swiglu, both)
        out = issue(f"{self.name}.down", backend.linear, inner, self.down)
        if group.size == 1:
            return out
        if self._rows_are_shared:
            return issue(f"{self.name}.all_reduce", backend.all_reduce, out, group)
        return issue(f"{self.name}.reduce_scatter", backend.reduce_scatter, out, group)
