"""Streams, core limits, SuperKernel scopes and events, as a graph mode is told of them.

Eager streams are the device's own, and every wait is an event.  In ge_graph the graph's edges
order the streams: an op that reads another stream's tensor waits for it.  In npugraph_ex what
is captured runs in the order of streams alone, so every wait is an event that one stream
records and another waits for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from itertools import count
from typing import Any

import torch
from typing_extensions import override

from hardware_models.hardware import Hardware
from runtime_npu.npu.limits import check_core_limit
from runtime_npu.record import MAIN_STREAM
from twin.schedule import CoreLimit

TORCHAIRS_MAIN = "default"
"""What torchair calls the stream that a graph begins on."""


class Order(ABC):
    """Scopes of torchair; every one is left again, also by an exception."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._stream = MAIN_STREAM
        self._limit = CoreLimit()
        self._scope: str | None = None

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Ops inside go to stream ``name``."""
        if name == self._stream:
            yield
            return
        outer, self._stream = self._stream, name
        try:
            with self._switch(name):
                yield
        finally:
            self._stream = outer

    @contextmanager
    def core_limit(self, aic: int | None, aiv: int | None) -> Iterator[None]:
        """Ops inside use at most these cores; ``None``: all of the die."""
        limit = CoreLimit(aic=aic, aiv=aiv)
        if limit == self._limit:
            yield
            return
        cube = self._hardware.count("aic_count") if aic is None else aic
        vector = self._hardware.count("aiv_count") if aiv is None else aiv
        check_core_limit(cube, vector, self._hardware)
        outer, self._limit = self._limit, limit
        try:
            with scope("limit_core_num", cube, vector):
                yield
        finally:
            self._limit = outer

    @contextmanager
    def super_kernel(self, name: str | None) -> Iterator[None]:
        """Ops inside belong to SuperKernel scope ``name``; ``None``: to none."""
        if name == self._scope:
            yield
            return
        outer, self._scope = self._scope, name
        try:
            with scope("super_kernel", name or ""):
                yield
        finally:
            self._scope = outer

    @property
    def current(self) -> str:
        """The stream in force."""
        return self._stream

    def _switch(self, name: str) -> AbstractContextManager[None]:
        switched: AbstractContextManager[None] = scope("npu_stream_switch", name)
        return switched

    @abstractmethod
    def gives_back(self, tensor: torch.Tensor) -> None:
        """The current stream wrote ``tensor``, which main will read."""

    @abstractmethod
    def reads(self, tensor: torch.Tensor) -> None:
        """The current stream reads ``tensor``, which another stream wrote."""

    @abstractmethod
    def signal(self, tag: str) -> None:
        """Event ``tag`` is behind what the current stream was given so far."""

    @abstractmethod
    def wait(self, tag: str) -> None:
        """Hold the current stream until event ``tag``."""


class EagerOrder(Order):
    """Streams and events of the device; it has neither core limits nor scopes (validated)."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(hardware)
        self._npu: Any = torch.npu  # type: ignore[attr-defined]
        self.streams: dict[str, Any] = {MAIN_STREAM: self._npu.current_stream()}
        self._events: dict[str, Any] = {}

    @override
    def _switch(self, name: str) -> AbstractContextManager[None]:
        if name not in self.streams:
            self.streams[name] = self._npu.Stream()
        switched: AbstractContextManager[None] = self._npu.stream(self.streams[name])
        return switched

    @override
    def gives_back(self, tensor: torch.Tensor) -> None:
        if self._stream != MAIN_STREAM:
            tensor.record_stream(self.streams[MAIN_STREAM])

    @override
    def reads(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.streams[self._stream])

    @override
    def signal(self, tag: str) -> None:
        self._events[tag] = event = self._npu.Event()
        event.record(self.streams[self._stream])

    @override
    def wait(self, tag: str) -> None:
        self._events[tag].wait(self.streams[self._stream])


class GeOrder(Order):
    """Edges say it all: of order, and of how long a tensor must live."""

    @override
    def gives_back(self, tensor: torch.Tensor) -> None:
        pass

    @override
    def reads(self, tensor: torch.Tensor) -> None:
        pass

    @override
    def signal(self, tag: str) -> None:
        pass

    @override
    def wait(self, tag: str) -> None:
        pass


_graphs = count()


class CapturedOrder(Order):
    """Tagged events.  torchair keeps tags for good, so that each graph has its own."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(hardware)
        self._graph = next(_graphs)
        self._events: dict[str, Any] = {}

    @override
    def gives_back(self, tensor: torch.Tensor) -> None:
        pass

    @override
    def reads(self, tensor: torch.Tensor) -> None:
        # Else its memory could be written anew while this stream still reads it.
        tag = TORCHAIRS_MAIN if self._stream == MAIN_STREAM else self._stream
        import_module("torchair.ops").npu_record_tagged_stream(tensor, tag)

    @override
    def signal(self, tag: str) -> None:
        if tag in self._events:
            return  # the same point of the same stream
        ops = import_module("torchair.ops")
        self._events[tag] = ops.npu_create_tagged_event(f"{self._graph}.{tag}")
        ops.npu_tagged_event_record(self._events[tag])

    @override
    def wait(self, tag: str) -> None:
        import_module("torchair.ops").npu_tagged_event_wait(self._events[tag])


def scope(name: str, *arguments: object) -> Any:
    """The scope ``name`` of torchair, a context manager."""
    return getattr(import_module("torchair").scope, name)(*arguments)
