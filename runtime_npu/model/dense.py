"""The dense feed-forward network."""

from __future__ import annotations

import torch
from torch import nn

from runtime_npu.model.issue import Issuer
from runtime_npu.model.parameters import parameter
from twin.model_spec import ModelSpec


class Dense(nn.Module):
    """SwiGLU FFN; ``gate_up`` holds the gate's rows, then the up projection's."""

    def __init__(self, spec: ModelSpec, name: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.name = name
        width = spec.ffn_hidden_size
        self.gate_up = parameter(2 * width, spec.hidden_size, dtype=dtype)
        self.down = parameter(spec.hidden_size, width, dtype=dtype)

    def forward(self, issue: Issuer, x: torch.Tensor) -> torch.Tensor:
        """Rows [T, hidden] to rows [T, hidden]."""
        backend = issue.backend
        both = issue(f"{self.name}.gate_up", backend.linear, x, self.gate_up)
        inner = issue(f"{self.name}.swiglu", backend.swiglu, both)
        return issue(f"{self.name}.down", backend.linear, inner, self.down)
