"""Tracing: the model's calls as a flat graph, every node with the name of its op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from typing_extensions import override

from runtime_npu.backends.npu_issue import Listener

OP = "longcat_op"
GLUE = "longcat_glue"
"""Keys in a node's meta data: its op's name, and whether it only follows that op."""


class Names(Listener):
    """Names the nodes by their ops; what lies between two ops is the first one's glue."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._name = ""

    @override
    def launched(self, name: str) -> None:
        self._name = name
        self._annotate(is_glue=False)

    @override
    def done(self) -> None:
        self._annotate(is_glue=True)

    def end(self) -> None:
        """No op is open any more."""
        self._open.close()

    def _annotate(self, *, is_glue: bool) -> None:
        self._open.close()
        self._open.enter_context(fx_traceback.annotate({OP: self._name, GLUE: is_glue}))


Input = torch.Tensor | torch.SymInt
"""A number among the inputs may be another one when the graph runs."""


@dataclass(frozen=True, slots=True)
class Traced:
    """``graph`` takes ``inputs``, in order: those with the numbers ``used`` of all."""

    graph: torch.fx.GraphModule
    inputs: tuple[Input, ...]
    used: tuple[int, ...]


def trace(
    run: Callable[[], Sequence[torch.Tensor]],
    inputs: Sequence[Input],
    mode: FakeTensorMode,
    names: Names,
) -> Traced:
    """The calls that ``run`` makes on ``inputs``, which it reaches by itself."""

    def traced(*_: Input) -> tuple[torch.Tensor, ...]:
        try:
            return tuple(run())
        finally:
            names.end()

    with mode, fx_traceback.preserve_node_meta(), torch.no_grad():
        graph = make_fx(traced, _allow_fake_constant=True)(*inputs)
    nodes = graph.graph.find_nodes(op="placeholder")
    used = tuple(number for number, node in enumerate(nodes) if node.users)
    for node in nodes:
        if not node.users:
            graph.graph.erase_node(node)
    _drop_unread(graph)
    graph.recompile()
    return Traced(graph, tuple(inputs[number] for number in used), used)


def _drop_unread(graph: torch.fx.GraphModule) -> None:
    """Leave out constants, and views of the model's own weights, that no op reads."""
    dropped = set()
    for node in graph.graph.find_nodes(op="get_attr"):
        if any(user.users for user in node.users):
            continue
        for user in list(node.users):
            graph.graph.erase_node(user)
        graph.graph.erase_node(node)
        dropped.add(str(node.target))
    for name in dropped - {str(node.target) for node in graph.graph.find_nodes(op="get_attr")}:
        delattr(graph, name)


def op_of(node: torch.fx.Node) -> str | None:
    """The name of the op that ``node`` belongs to."""
    name = node.meta.get("custom", {}).get(OP)
    return name if isinstance(name, str) else None


def is_glue(node: torch.fx.Node) -> bool:
    """Whether ``node`` only brings its op's result to the next one."""
    return bool(node.meta.get("custom", {}).get(GLUE))


def shape_of(node: torch.fx.Node) -> tuple[int, ...]:
    """The shape of what ``node`` gives first; empty where that is no tensor of fixed sizes."""
    return first_shape(node.meta.get("val"))


def first_shape(given: object) -> tuple[int, ...]:
    """The same of what a call gave."""
    first = given[0] if isinstance(given, (tuple, list)) and given else given
    if not isinstance(first, torch.Tensor):
        return ()
    sizes = tuple(first.shape)
    return sizes if all(isinstance(size, int) for size in sizes) else ()


def written(func: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of a call that it writes."""
    arguments = func._schema.arguments
    given = {**dict(zip((one.name for one in arguments), args, strict=False)), **kwargs}
    return [
        given[one.name]
        for one in arguments
        if one.name in given and one.alias_info and one.alias_info.is_write
    ]
