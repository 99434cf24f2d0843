"""The npu backend's ground: forms, order of streams, and which stream wrote what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed._functional_collectives as collectives
from typing_extensions import override

from hardware_models.errors import InputError
from runtime_npu.backends.base import Backend
from runtime_npu.backends.npu_order import Order
from runtime_npu.npu import vector_ops
from runtime_npu.npu.forms import Forms
from runtime_npu.npu.writers import Writers
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.record import Event, Recorder
from twin.graph.step_graph import PREFETCH_STREAM

Namer = Callable[[Communicator], str]
"""HCCL's name of a group."""


class Listener:
    """Is told where the calls of each op begin and end; this one does not listen."""

    def launched(self, name: str) -> None:
        """Calls from here on are those of op ``name``, a prefetch too."""

    def done(self) -> None:
        """Its last call was made: what follows only brings its result to the next op."""


class NpuIssue(Backend):
    """Where ops are issued; the ops themselves are its subclasses'.

    ``order`` says how the graph mode is told of streams, limits, scopes and waits.
    """

    def __init__(
        self,
        forms: Forms,
        order: Order,
        communicator_name: Namer,
        listener: Listener,
    ) -> None:
        super().__init__()
        self._forms = forms
        self._order = order
        self._communicator_name = communicator_name
        self._listener = listener
        self._writers = Writers()
        self._output: torch.Tensor | None = None
        self._transfers: dict[tuple[int, bool], int] = {}
        self._turn = 0
        self._context: torch.Tensor | None = None

    @contextmanager
    def issuing(self, forms: Forms, order: Order, listener: Listener) -> Iterator[Recorder]:
        """One pass: ops inside take ``forms``, are ordered by ``order`` and recorded apart."""
        outer = self._forms, self._order, self._listener, self.recorder
        self._forms, self._order, self._listener = forms, order, listener
        self.recorder = Recorder()
        self._writers.clear()
        self._transfers.clear()
        self._turn, self._context = 0, None
        self._output = None
        try:
            yield self.recorder
        finally:
            self._forms, self._order, self._listener, self.recorder = outer

    @override
    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        with super().stream(name), self._order.stream(name):
            yield

    @override
    @contextmanager
    def core_limit(self, aic: int | None, aiv: int | None) -> Iterator[None]:
        with super().core_limit(aic, aiv), self._order.core_limit(aic, aiv):
            yield

    @override
    @contextmanager
    def super_kernel(self, scope: str | None) -> Iterator[None]:
        with super().super_kernel(scope), self._order.super_kernel(scope):
            yield

    @override
    def launch(self, name: str, kind: str) -> Event:
        self._listener.launched(name)
        return super().launch(name, kind)

    @override
    def signal(self) -> Event:
        event = super().signal()
        self._order.signal(event.after)
        return event

    @override
    def wait(self, event: Event) -> None:
        super().wait(event)
        if event.stream != self._order.current:
            self._order.wait(event.after)

    def _collected(self, result: torch.Tensor) -> torch.Tensor:
        """What a collective gave, behind its wait."""
        waited: torch.Tensor = collectives.wait_tensor(result)  # type: ignore[no-untyped-call]
        return self._wrote(waited)

    @override
    def prefetch(self, name: str, weight: torch.Tensor, after: Event, max_bytes: int) -> None:
        form = self._forms.of(weight)
        assert self._output is not None
        self._order.signal(after.after)
        with self._order.stream(PREFETCH_STREAM), self._order.super_kernel(None):
            self._order.wait(after.after)
            self._listener.launched(name)
            asked = vector_ops.prefetch(form, self._output, max_bytes)
            self._listener.done()
        self.recorder.prefetch(name, after, asked)

    def _read(self, *tensors: torch.Tensor) -> None:
        """Tell of tensors that another stream wrote."""
        for tensor in tensors:
            if self._writers.of(tensor) not in (None, self._order.current):
                self._order.reads(tensor)

    @override
    def join_rows(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        if len(parts) == 1:
            return parts[0]
        self._read(*parts)
        joined = super().join_rows(parts)
        self._writers.wrote(joined, self._order.current)
        return joined

    def _wrote_beside(self, *tensors: torch.Tensor) -> None:
        """Of what the op wrote besides its first result, which :meth:`_wrote` is told of."""
        for tensor in tensors:
            self._writers.wrote(tensor, self._order.current)
            self._order.gives_back(tensor)

    def _wrote(self, tensor: torch.Tensor) -> torch.Tensor:
        """The op's output, which its last call gave."""
        self._wrote_beside(tensor)
        self._ended(tensor)
        return tensor

    def _ended(self, tensor: torch.Tensor) -> None:
        """The op's last call was made; it wrote, or where it gives nothing read, ``tensor``."""
        self._output = tensor
        self._listener.done()


def not_here(what: str) -> InputError:
    """The refusal of ``what`` this backend does not do."""
    return InputError("device", "npu", f"greedy tokens; {what} runs on cpu")
