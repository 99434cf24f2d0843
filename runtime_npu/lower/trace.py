"""Tracing: the model's calls as a flat graph, every node with the name of its op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.fx.traceback as fx_traceback
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

OP = "longcat_op"
"""The key of a node's name in its meta data."""


class Names:
    """Names the ops as they are launched; every node behind a launch belongs to it."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def launched(self, name: str) -> None:
        """From here on ops are those of ``name``."""
        self._open.close()
        self._open.enter_context(fx_traceback.annotate({OP: name}))

    def end(self) -> None:
        """No op is open any more."""
        self._open.close()


@dataclass(frozen=True, slots=True)
class Traced:
    """``graph`` takes ``inputs``, in order."""

    graph: torch.fx.GraphModule
    inputs: tuple[torch.Tensor, ...]


def trace(
    run: Callable[[], Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    mode: FakeTensorMode,
    names: Names,
) -> Traced:
    """The calls that ``run`` makes on ``inputs``, which it reaches by itself."""

    def traced(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        try:
            return tuple(run())
        finally:
            names.end()

    with mode, fx_traceback.preserve_node_meta(), torch.no_grad():
        graph = make_fx(traced, _allow_fake_constant=True)(*inputs)
    used = [
        (node, tensor)
        for node, tensor in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True)
        if node.users
    ]
    for node in graph.graph.find_nodes(op="placeholder"):
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return Traced(graph, tuple(tensor for _, tensor in used))


def op_of(node: torch.fx.Node) -> str | None:
    """The name of the op that ``node`` belongs to."""
    name = node.meta.get("custom", {}).get(OP)
    return name if isinstance(name, str) else None
