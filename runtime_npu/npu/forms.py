"""Tensors as the kernels read them, found by the model's own tensors.

The model holds weights in the layout of the checkpoint, and makes batches on the host.  A
kernel wants products' weights inner size first, cosines for both halves of a head, whole
numbers of 32 bits.  Each such form is made once, outside the graph, and is one of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hardware_models.errors import TwinError

TRANSPOSED = frozenset(
    ("q_a", "q_b", "kv_a", "o_proj", "gate_up", "down", "eh_proj", "router", "w13", "w2", "lm_head")
)
"""Weights of products, by the last part of their names: [..., n, k] becomes [..., k, n]."""

_Key = tuple[int, int, int]
Place = Callable[[torch.Tensor], torch.Tensor]
"""Brings a host tensor to the device, contiguous."""


class UnboundError(TwinError):
    """The model gave an op a tensor that has no form: our own fault."""


class Forms:
    """The forms of weights, caches and inputs; ``inputs`` are all of them, in order."""

    def __init__(self) -> None:
        self._forms: dict[_Key, torch.Tensor] = {}
        self._ones: dict[int, torch.Tensor] = {}
        self._lengths: dict[_Key, tuple[torch.Tensor, torch.Tensor]] = {}
        self.inputs: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []

    def bind(self, host: torch.Tensor, form: torch.Tensor) -> None:
        """From now on ``form`` stands for ``host``, and for views of all of it."""
        self._forms[_key(host)] = form
        self.inputs.append(form)
        # A storage that is freed could lend its address to another tensor.
        self._kept.append(host)

    def of(self, host: torch.Tensor) -> torch.Tensor:
        """The form of ``host``."""
        form = self._forms.get(_key(host))
        if form is None:
            raise UnboundError(f"a tensor {tuple(host.shape)} of {host.dtype} was not bound")
        return form

    def bind_lengths(
        self, block_table: torch.Tensor, last_rows: torch.Tensor, kv_lengths: torch.Tensor
    ) -> None:
        """Lengths on the device, of the batch with ``block_table``."""
        self._lengths[_key(block_table)] = last_rows, kv_lengths
        self.inputs.extend((last_rows, kv_lengths))

    def lengths(self, block_table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Rows up to each sequence's last, and its tokens; ``None``: they are numbers."""
        return self._lengths.get(_key(block_table))

    def bind_ones(self, width: int, ones: torch.Tensor) -> None:
        """``ones`` [width] fp32: the scale of a product whose scale comes later."""
        self._ones[width] = ones
        self.inputs.append(ones)

    def ones(self, width: int) -> torch.Tensor:
        """The ones of ``width``."""
        return self._ones[width]


def bind_weights(forms: Forms, model: torch.nn.Module, place: Place) -> None:
    """Bind every parameter of ``model``."""
    for name, weight in model.named_parameters():
        last = name.rpartition(".")[2]
        form = weight.detach()
        if last in TRANSPOSED:
            form = form.transpose(-1, -2)
        elif last == "w2_scale":
            form = form.to(torch.bfloat16)  # what the grouped product multiplies with
        forms.bind(weight, place(form))
        if last == "gate_up_scale":
            width = form.shape[0]
            forms.bind_ones(width, place(torch.ones_like(form)))


def _key(tensor: torch.Tensor) -> _Key:
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel()
