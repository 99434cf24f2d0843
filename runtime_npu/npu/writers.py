"""Which stream wrote a tensor, for those that read it on another one."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Writers:
    """The streams that wrote, by the memory that they wrote: a view of it counts as the whole."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[StorageWeakRef, str]] = {}

    def wrote(self, tensor: torch.Tensor, stream: str) -> None:
        """``stream`` was the last to write ``tensor``."""
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._streams[reference.cdata] = reference, stream

    def of(self, tensor: torch.Tensor) -> str | None:
        """The stream that wrote ``tensor`` last; ``None``: none did."""
        # As long as the reference is held, no other memory takes the same address.
        _, stream = self._streams.get(tensor.untyped_storage()._cdata, (None, None))
        return stream

    def clear(self) -> None:
        """Forget all."""
        self._streams.clear()
