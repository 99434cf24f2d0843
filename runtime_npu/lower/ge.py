"""ge_graph: torchair's converters make a GE graph; nodes carry streams, cores and scopes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from runtime_npu.lower.groups import group_of_text
from runtime_npu.lower.lowered import Clocks, LoweredOp, one
from runtime_npu.lower.trace import Traced, op_of
from runtime_npu.npu.compiler import compiler_config
from runtime_npu.record import MAIN_STREAM
from twin.graph.step_graph import PREFETCH_STREAM

FRAMEWORK = frozenset(("Data", "Const", "NetOutput", "Fill", "Identity", "Reshape"))
"""Nodes that move or compute nothing of their own; casts of them are of empty inputs."""


def lower_ge(traced: Traced, mode: FakeTensorMode) -> list[LoweredOp]:
    """The ops of the GE graph of ``traced``, in its order."""
    torchair: Any = import_module("torchair")
    backend = torchair.get_npu_backend(compiler_config=compiler_config("ge_graph"))
    with _captured() as captured, mode, torch.no_grad():
        backend(traced.graph, list(traced.inputs))
    return _read(captured.graph.op, captured.owners)


class _Captured:
    """``graph`` as converted; ``owners`` are the op names of its nodes."""

    def __init__(self) -> None:
        self.graph: Any = None
        self.owners: dict[str, str] = {}


@contextmanager
def _captured() -> Iterator[_Captured]:
    """Catch the next GE graph, and which op each of its nodes came from.

    There is no registry of GE's op types without CANN, so that every optional input is said
    to be known.
    """
    converter: Any = import_module("torchair._ge_concrete_graph.fx2ge_converter")
    compatibility: Any = import_module("torchair._ge_concrete_graph.compat_ir")
    concrete = converter.GeConcreteGraph
    context, is_known = concrete.converter_context, compatibility.is_cann_compat
    captured = _Captured()

    @contextmanager
    def noting(self: Any, *, node: torch.fx.Node) -> Iterator[None]:
        captured.graph = self.graph
        first = len(self.graph.op)
        with context(self, node=node):
            yield
        name = op_of(node)
        for made in self.graph.op[first:]:
            if name is not None:
                captured.owners[made.name] = name

    concrete.converter_context = noting
    compatibility.is_cann_compat = lambda *_, **__: ""
    try:
        yield captured
    finally:
        concrete.converter_context = context
        compatibility.is_cann_compat = is_known


def _read(nodes: Any, owners: dict[str, str]) -> list[LoweredOp]:
    by_op: dict[str, list[Any]] = {}
    for node in nodes:
        name = owners.get(node.name)
        if name is not None:
            by_op.setdefault(name, []).append(node)
    silent = {node.name for node in nodes if node.type in FRAMEWORK - {"Data"}}
    silent |= {n.name for n in nodes if n.type == "Cast" and _sources(n) <= silent}
    clocks = Clocks()
    return [
        _op(name, own, [n for n in own if n.name not in silent] or own, owners, clocks)
        for name, own in by_op.items()
    ]


def _sources(node: Any) -> set[str]:
    """The nodes that ``node`` reads or waits for."""
    return {edge.rpartition(":")[0] for edge in node.input if edge}


def _op(
    name: str, nodes: list[Any], telling: list[Any], owners: dict[str, str], clocks: Clocks
) -> LoweredOp:
    """The op of ``nodes``, of which ``telling`` do something."""
    stream = one(name, "streams", map(_stream, telling))
    scope = one(name, "scopes", map(_scope, telling))
    aic, aiv = one(name, "core limits", map(_limit, telling))
    reads = [
        owners[source]
        for node in nodes
        for source in sorted(_sources(node))
        if owners.get(source, name) != name
    ]
    is_prefetch = stream == PREFETCH_STREAM
    waits = clocks.issue(name, stream, reads)
    return LoweredOp(
        name=name,
        calls=tuple(node.type for node in telling),
        stream=stream,
        aic=None if is_prefetch else aic,
        aiv=None if is_prefetch else aiv,
        scope=scope,
        # A prefetch names its own op, also where the one before it has waited for that.
        waits=tuple(op for op in reads if not clocks.same_stream(op, name))
        if is_prefetch
        else waits,
        prefetch_bytes=sum(node.attr["max_size"].i for node in nodes if node.type == "Cmo"),
        group=next((group for group in map(_group, nodes) if group), None),
    )


def _text(node: Any, key: str) -> str:
    return str(node.attr[key].s.decode()) if key in node.attr else ""


def _stream(node: Any) -> str:
    return _text(node, "_user_stream_label") or MAIN_STREAM


def _scope(node: Any) -> str | None:
    return _text(node, "_super_kernel_scope") or None


def _limit(node: Any) -> tuple[int | None, int | None]:
    cube, vector = _text(node, "_op_aicore_num"), _text(node, "_op_vectorcore_num")
    return (int(cube) if cube else None, int(vector) if vector else None)


def _group(node: Any) -> str | None:
    return group_of_text(_text(node, "group") or _text(node, "group_ep"))
