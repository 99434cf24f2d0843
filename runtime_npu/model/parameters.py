"""Parameters without storage: filled when a checkpoint is loaded."""

from __future__ import annotations

import torch
from torch import nn


def parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter on the meta device, to be assigned by ``load_state_dict``."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)
