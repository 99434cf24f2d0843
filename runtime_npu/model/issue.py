"""Issuing ops: the model's calls on the backend, under the schedule's stages and prefetches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import nn
from typing_extensions import override

from hardware_models.errors import InputError
from runtime_npu.backends.base import Backend
from runtime_npu.model.pieces import Pieces
from runtime_npu.plan import PLAIN, Lane, LayerPlan
from runtime_npu.record import MAIN_STREAM, Event
from twin.graph.role_writer import Pass
from twin.names import HOST_STREAM, parse_weight
from twin.schedule import CoreLimit, Prefetch

P = ParamSpec("P")
R = TypeVar("R")
WeightFinder = Callable[[str], torch.Tensor | None]
"""The tensor of a prefetch's weight name, ``None`` where there is nothing to fetch."""


class Issuer:
    """Issues one layer's ops (or those outside the layers) by their local names.

    ``issue("attention.0.o_proj", backend.linear, x, weight)`` records the op as
    ``prefix`` + name, runs it, issues the prefetches that wait for its output and moves on
    to the next stage where the op ends one.  ``block`` goes before every op's name, for
    prefetches too: ``mtp.0.`` where the model says ``norms``.
    """

    def __init__(
        self,
        backend: Backend,
        prefix: str,
        plan: LayerPlan,
        find_weight: WeightFinder,
        *,
        block: str = "",
    ) -> None:
        self.backend = backend
        self._prefix = prefix
        self._block = block
        self._plan = plan
        self._find_weight = find_weight
        self._prefetches: dict[str, list[Prefetch]] = {}
        for prefetch in plan.prefetches:
            self._prefetches.setdefault(prefetch.after, []).append(prefetch)
        self._open = ExitStack()
        self._stage = 0

    def __call__(self, op: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Issue ``op``: the backend method ``call`` on the other arguments."""
        op = self._block + op
        event = self.backend.launch(self._prefix + op, call.__name__)
        output = call(*args, **kwargs)
        self.prefetch(op, event)
        if op == self._plan.stages[self._stage].ends_after:
            self._stage += 1
            self._open.close()
            self._enter(self._open, self._plan.stages[self._stage].lane)
        return output

    def exchange(
        self, op: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Pieces[R]:
        """Issue ``op``, an exchange between dies: a piece of a chain ends behind it."""
        output = self(op, call, *args, **kwargs)
        yield
        return output

    def host_read(self, op: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Issue ``op``, which the host does: it waits for the device, and the device for it."""
        with self.backend.stream(HOST_STREAM):
            return self(op, call, *args, **kwargs)

    def prefetch(self, op: str, event: Event) -> None:
        """Issue the prefetches that wait for the output of ``op``, which ``event`` is behind."""
        for prefetch in self._prefetches.get(op, ()):
            weight = self._find_weight(prefetch.weight)
            if weight is not None:
                name = f"{self._prefix}prefetch.{prefetch.weight}"
                self.backend.prefetch(name, weight, event, prefetch.bytes)

    @contextmanager
    def stages(self) -> Iterator[None]:
        """One pass through the layer: ops inside run in the schedule's stages, in turn."""
        self._stage = 0
        with self._open:
            self._enter(self._open, self._plan.stages[0].lane)
            yield

    @contextmanager
    def last_stage(self) -> Iterator[None]:
        """Ops inside run in the stage that the pass through the layer ended in."""
        with ExitStack() as stack:
            self._enter(stack, self._plan.stages[self._stage].lane)
            yield

    @contextmanager
    def link(self, name: str = "link", part: int = 0) -> Iterator[None]:
        """Transfers inside run on the link stream ``name``, the ``part``-th: no scope."""
        with ExitStack() as stack:
            limits = self._plan.links
            self._enter(stack, Lane(name, limits[part] if limits else CoreLimit(), None))
            yield

    @contextmanager
    def moe_branch(self) -> Iterator[None]:
        """Ops inside run on the MoE's stream, or stay on main where it has none."""
        with ExitStack() as stack:
            if self._plan.moe is not None:
                self._enter(stack, self._plan.moe)
            yield

    def _enter(self, stack: ExitStack, lane: Lane) -> None:
        stack.enter_context(self.backend.stream(lane.stream))
        stack.enter_context(self.backend.core_limit(lane.limit.aic, lane.limit.aiv))
        scope = None if lane.scope is None else self._prefix + lane.scope
        stack.enter_context(self.backend.super_kernel(scope))


class ChainIssuer(Issuer):
    """Issues a prefill layer's ops as one chain: each waits for the one before it.

    Exchanges run on the stream ``exchanges``, where those of one micro-batch may overlap what
    the others compute.  Where the chain stays on its stream, the stream's order is the wait.
    """

    def __init__(self, backend: Backend, prefix: str, exchanges: str) -> None:
        super().__init__(backend, prefix, PLAIN, no_weight)
        self._exchanges = exchanges
        self._elsewhere: Event | None = None

    @override
    def __call__(self, op: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._elsewhere is not None:
            self.backend.wait(self._elsewhere)
            self._elsewhere = None
        return super().__call__(op, call, *args, **kwargs)

    @override
    def exchange(
        self, op: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Pieces[R]:
        with self._goes_to(self._exchanges):
            output = self(op, call, *args, **kwargs)
        yield
        return output

    @override
    def host_read(self, op: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self._goes_to(HOST_STREAM):
            return self(op, call, *args, **kwargs)

    @contextmanager
    def _goes_to(self, stream: str) -> Iterator[None]:
        """The chain's next op is on ``stream``; the one behind it waits for that."""
        if self._elsewhere is None and stream != MAIN_STREAM:
            self._elsewhere = self.backend.signal()
        with self.backend.stream(stream):
            yield
            self._elsewhere = self.backend.signal()


def layer_weight(
    layers: nn.ModuleList, passes: Sequence[Pass], run: Pass, name: str
) -> torch.Tensor | None:
    """What a prefetch in ``run``, one of ``passes`` over ``layers``, fetches.

    ``None``: nothing, because no pass follows.
    """
    parsed = parse_weight(name)
    if not parsed.is_next:
        return layers[run.layer].get_parameter(parsed.weight)
    if run.is_last:
        return None
    following = passes[passes.index(run) + 1]
    return layers[following.layer].get_parameter(parsed.weight)


def no_weight(weight: str) -> torch.Tensor | None:
    """Finds nothing: for passes without prefetches."""
    raise InputError("prefetch.weight", weight, "none in this pass")
