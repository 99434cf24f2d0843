"""Eager calls as they are made: what the launches in the log do not show."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from hardware_models.hardware import Hardware
from runtime_npu.backends.npu_order import EagerOrder
from runtime_npu.lower.groups import group_of_call
from runtime_npu.lower.launched import Marks, note
from runtime_npu.lower.races import Races
from runtime_npu.lower.trace import first_shape, written
from runtime_npu.record import MAIN_STREAM


class WatchedOrder(EagerOrder):
    """Tells ``races`` of events that streams record and wait for, and of memory kept for them."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(hardware)
        self.races = Races()

    @override
    def gives_back(self, tensor: torch.Tensor) -> None:
        super().gives_back(tensor)
        self.races.keep(tensor.untyped_storage()._cdata, MAIN_STREAM)

    @override
    def reads(self, tensor: torch.Tensor) -> None:
        super().reads(tensor)
        self.races.keep(tensor.untyped_storage()._cdata, self.current)

    @override
    def signal(self, tag: str) -> None:
        super().signal(tag)
        self.races.record(tag, self.current)

    @override
    def wait(self, tag: str) -> None:
        super().wait(tag)
        self.races.wait(tag, self.current)


class NotedCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the group that a call names and the shape that it gives, and what it reads."""

    def __init__(self, order: WatchedOrder, marks: Marks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._order, self._marks = order, marks
        # As long as they are held, no other memory takes the same address.
        self._seen: dict[int, StorageWeakRef] = {}

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        group = group_of_call(func, args, kwargs)
        if group is not None:
            note(f"exchange {group}")
        given = func(*args, **kwargs)
        note(" ".join(("shape", *map(str, first_shape(given)))))
        returns = func._schema.returns
        is_view = any(one.alias_info and not one.alias_info.is_write for one in returns)
        # What is recorded for another stream is said to be written.
        if not is_view and func is not torch.ops.aten.record_stream.default:
            writes = [given, *written(func, args, kwargs)]
            self._order.races.call(
                self._marks.name,
                self._order.current,
                self._memory((args, kwargs)),
                self._memory(writes),
            )
        return given

    def _memory(self, tensors: Any) -> list[int]:
        found = []
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "npu":
                reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
                self._seen.setdefault(reference.cdata, reference)
                found.append(reference.cdata)
        return found
