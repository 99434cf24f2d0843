"""Tensors as the kernels read them, found by the model's own tensors.

The model holds weights in the layout of the checkpoint, and makes batches on the host.  A
kernel wants products' weights inner size first, cosines for both halves of a head, whole
numbers of 32 bits.  Each such form is made once, outside the graph, and is one of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hardware_models.errors import TwinError
from runtime_npu.kv_cache import KvCache
from runtime_npu.npu.window_forms import WindowForms
from twin.deployment import Deployment

TRANSPOSED = frozenset(
    ("q_a", "q_b", "kv_a", "o_proj", "gate_up", "down", "eh_proj", "router", "w13", "w2", "lm_head")
)
"""Weights of products, by the last part of their names: [..., n, k] becomes [..., k, n]."""

_Key = tuple[int, int, int]
Lengths = torch.Tensor | Sequence[int | torch.SymInt]
"""Rows or tokens of each sequence: on the device, or numbers."""
Place = Callable[[torch.Tensor], torch.Tensor]
"""Brings a host tensor to the device, contiguous."""


class UnboundError(TwinError):
    """The model gave an op a tensor that has no form: our own fault."""


class Forms:
    """The forms of weights, caches and inputs; ``inputs`` are all of them, in order."""

    def __init__(self) -> None:
        self._forms: dict[_Key, torch.Tensor] = {}
        self._ones: dict[int, torch.Tensor] = {}
        self._lengths: dict[_Key, tuple[Lengths, Lengths]] = {}
        self._aliases: dict[tuple[_Key, int], torch.Tensor] = {}
        self._derived: dict[object, torch.Tensor] = {}
        self._mask: torch.Tensor | None = None
        self._direct: WindowForms | None = None
        self.inputs: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []

    def bind(self, host: torch.Tensor, form: torch.Tensor) -> None:
        """From now on ``form`` stands for ``host``, and for views of all of it."""
        self._forms[_key(host)] = form
        self.inputs.append(form)
        # A storage that is freed could lend its address to another tensor.
        self._kept.append(host)

    def of(self, host: torch.Tensor) -> torch.Tensor:
        """The form of ``host``; what lies on the device stands for itself."""
        if host.device.type == "npu":
            return host
        form = self._forms.get(_key(host))
        if form is None:
            raise UnboundError(f"a tensor {tuple(host.shape)} of {host.dtype} was not bound")
        return form

    def bind_alias(self, host: torch.Tensor, number: int, alias: torch.Tensor) -> None:
        """From now on ``alias``, the same memory, is ``host``'s form for user ``number``."""
        self._aliases[_key(host), number] = alias
        self.inputs.append(alias)

    def for_user(self, host: torch.Tensor, number: int) -> torch.Tensor:
        """The form of ``host`` for user ``number``: its own, where it has one."""
        own = self._aliases.get((_key(host), number))
        return self.of(host) if own is None else own

    def bind_lengths(
        self, block_table: torch.Tensor, last_rows: Lengths, kv_lengths: Lengths
    ) -> None:
        """Lengths of the batch with ``block_table``; those on the device are inputs."""
        self._lengths[_key(block_table)] = last_rows, kv_lengths
        self.inputs.extend(
            lengths for lengths in (last_rows, kv_lengths) if isinstance(lengths, torch.Tensor)
        )

    def lengths(self, block_table: torch.Tensor) -> tuple[Lengths, Lengths] | None:
        """Rows up to each sequence's last, and its tokens; ``None``: those of the batch."""
        return self._lengths.get(_key(block_table))

    def copy(self, form: Callable[[torch.Tensor], torch.Tensor]) -> Forms:
        """The same tensors with ``form(...)`` of what stands for them now, in the same order."""
        made = {id(tensor): form(tensor) for tensor in self.inputs}
        copied = Forms()
        copied.inputs = [made[id(tensor)] for tensor in self.inputs]
        copied._forms = {key: made[id(tensor)] for key, tensor in self._forms.items()}
        copied._aliases = {key: made[id(tensor)] for key, tensor in self._aliases.items()}
        copied._ones = {width: made[id(tensor)] for width, tensor in self._ones.items()}
        copied._kept = list(self._kept)
        copied._mask = None if self._mask is None else made[id(self._mask)]
        if self._direct is not None:
            copied._direct = self._direct.copy(lambda tensor: made[id(tensor)])
        return copied

    def opened(self) -> Forms:
        """The same forms, to bind those of one eager pass beside them."""
        opened = Forms()
        opened.inputs, opened._kept = list(self.inputs), list(self._kept)
        opened._forms, opened._ones = dict(self._forms), self._ones
        opened._derived, opened._mask = self._derived, self._mask
        opened._direct = self._direct
        return opened

    def scaled(self, host: torch.Tensor, scale: float) -> torch.Tensor:
        """The form of ``host`` times ``scale``, made at its first use."""
        return self._made(("scaled", _key(host), scale), lambda: self.of(host) * scale)

    def flat(self, host: torch.Tensor, *, inner: int) -> torch.Tensor:
        """``host``'s form [heads, ., .] as a product of all heads, made at its first use.

        Axis ``inner`` comes first, behind it the heads' other axes side by side.
        """

        def make() -> torch.Tensor:
            form = self.of(host)
            return form.permute(inner, 0, 3 - inner).flatten(1).contiguous()

        return self._made(("flat", _key(host), inner), make)

    def _made(self, key: object, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    @property
    def mask(self) -> torch.Tensor:
        """Attention's mask (:data:`runtime_npu.npu.attention_ops.MASK`)."""
        assert self._mask is not None
        return self._mask

    def bind_mask(self, mask: torch.Tensor) -> None:
        """``mask`` is on the device."""
        self._mask = mask
        self.inputs.append(mask)

    @property
    def direct(self) -> WindowForms:
        """The tables of direct transfers."""
        assert self._direct is not None
        return self._direct

    def bind_direct(self, windows: WindowForms) -> None:
        """All of ``windows`` is on the device."""
        self._direct = windows
        self.inputs.extend(windows.tensors)

    def bind_ones(self, width: int, ones: torch.Tensor) -> None:
        """``ones`` [width] fp32: the scale of a product whose scale comes later."""
        self._ones[width] = ones
        self.inputs.append(ones)

    def ones(self, width: int) -> torch.Tensor:
        """The ones of ``width``."""
        return self._ones[width]


def bind_weights(
    forms: Forms,
    model: torch.nn.Module,
    place: Place,
    values: Callable[[str], torch.Tensor] | None = None,
) -> None:
    """Bind every parameter of ``model``; ``values`` are theirs by name where they lie elsewhere."""
    for name, weight in model.named_parameters():
        last = name.rpartition(".")[2]
        form = (weight if values is None else values(name)).detach()
        if last in TRANSPOSED:
            form = form.transpose(-1, -2)
        elif last == "w2_scale":
            form = form.to(torch.bfloat16)  # what the grouped product multiplies with
        forms.bind(weight, place(form))
        if last == "gate_up_scale":
            width = form.shape[0]
            forms.bind_ones(width, place(torch.ones_like(form)))


def bind_cache(
    forms: Forms,
    cache: KvCache,
    place: Place,
    alias: Callable[[torch.Tensor], torch.Tensor],
    deployment: Deployment,
) -> None:
    """Bind all of ``cache``; captured micro-batches but the first get an ``alias`` of the layers'.

    A captured graph copies a tensor that two ops of it write, unless they are two inputs.  The
    micro-batches write different blocks, so each may have the pool for itself.
    """
    afd = deployment.afd
    is_captured = deployment.graph_mode == "npugraph_ex"
    users = afd.micro_batches if afd is not None and is_captured else 1
    for attention in cache.attentions:
        for half in (attention.latent, attention.rope):
            form = place(half.unsqueeze(2))
            forms.bind(half, form)
            for number in range(1, users):
                forms.bind_alias(half, number, alias(form))


def _key(tensor: torch.Tensor) -> _Key:
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel()
