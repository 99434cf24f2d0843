"""Stating and checking what an op takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hardware_models.errors import InputError

Sizes = Sequence[int | None]
"""A shape; ``None`` stands for any size."""


class Contract:
    """The checks of one call of ``op``; every one raises an :class:`InputError` of its own."""

    def __init__(self, op: str) -> None:
        self._op = op

    def tensor(self, name: str, tensor: torch.Tensor, sizes: Sizes, *dtypes: torch.dtype) -> None:
        """``tensor`` has the shape ``sizes`` and one of ``dtypes``."""
        shape = tuple(tensor.shape)
        fits = len(shape) == len(sizes) and all(
            wanted in (None, size) for size, wanted in zip(shape, sizes, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in sizes)
            self._refuse(f"{name}.shape", shape, f"[{wanted}]")
        if tensor.dtype not in dtypes:
            allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            self._refuse(f"{name}.dtype", str(tensor.dtype).removeprefix("torch."), allowed)

    def within(self, name: str, value: int, low: int, high: int) -> None:
        """``value`` is ``low`` to ``high``."""
        if not low <= value <= high:
            self._refuse(name, value, f"{low} to {high}")

    def one_of(self, name: str, value: object, *allowed: object) -> None:
        """``value`` is among ``allowed``."""
        if value not in allowed:
            self._refuse(name, value, " or ".join(map(str, allowed)))

    def divides(self, name: str, value: int, total: int, what: str) -> None:
        """``value`` divides ``total``, the number of ``what``."""
        if value < 1 or total % value:
            self._refuse(name, value, f"a divisor of the {total} {what}")

    def holds(self, condition: bool, name: str, value: object, allowed: str) -> None:
        """Any other condition."""
        if not condition:
            self._refuse(name, value, allowed)

    def _refuse(self, name: str, value: object, allowed: str) -> None:
        raise InputError(f"{self._op}.{name}", value, allowed)


def call(op: str, *args: object, **kwargs: object) -> Any:
    """Call ``op`` of torch_npu, which must be imported by now."""
    return getattr(torch.ops.npu, op)(*args, **kwargs)
