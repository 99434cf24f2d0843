"""ge_graph: torchair's converters make a GE graph; nodes carry streams, cores and scopes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from runtime_npu.lower.groups import group_of_text, ranks_of_text
from runtime_npu.lower.lowered import Clocks, LoweredOp, one, peer_label, unplanned
from runtime_npu.lower.trace import Traced, is_glue, op_of, shape_of
from runtime_npu.npu.compiler import compiler_config
from runtime_npu.record import MAIN_STREAM
from twin.graph.step_graph import PREFETCH_STREAM

FRAMEWORK = frozenset(("Data", "Const", "NetOutput", "Fill", "Empty", "Identity", "Reshape"))
"""Nodes that move or compute nothing of their own; casts of them are of empty inputs."""


def lower_ge(traced: Traced, mode: FakeTensorMode) -> list[LoweredOp]:
    """The ops of the GE graph of ``traced``, in its order."""
    torchair: Any = import_module("torchair")
    backend = torchair.get_npu_backend(compiler_config=compiler_config("ge_graph"))
    with _captured() as captured, mode, torch.no_grad():
        backend(traced.graph, list(traced.inputs))
    return _read(captured)


class _Captured:
    """``graph`` as converted; ``owners`` are the op names of its nodes, some of them glue."""

    def __init__(self) -> None:
        self.graph: Any = None
        self.owners: dict[str, str] = {}
        self.glue: set[str] = set()
        self.sources: dict[str, set[str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}


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
            captured.shapes[made.name] = shape_of(node)
            if name is not None:
                captured.owners[made.name] = name
            if is_glue(node):
                captured.glue.add(made.name)

    concrete.converter_context = noting
    compatibility.is_cann_compat = lambda *_, **__: ""
    try:
        yield captured
    finally:
        concrete.converter_context = context
        compatibility.is_cann_compat = is_known


def _read(captured: _Captured) -> list[LoweredOp]:
    nodes, owners = captured.graph.op, captured.owners
    captured.sources = {node.name: _sources(node) for node in nodes}
    silent = {node.name for node in nodes if node.type in FRAMEWORK}
    empty = {node.name for node in nodes if node.type in FRAMEWORK - {"Data"}}
    silent |= {n.name for n in nodes if n.type == "Cast" and captured.sources[n.name] <= empty}
    by_op: dict[str, list[Any]] = {}
    for number, node in enumerate(nodes):
        if node.name not in owners and node.name not in silent:
            owners[node.name] = unplanned(node.type, number)
        if node.name in owners:
            by_op.setdefault(owners[node.name], []).append(node)
    clocks = Clocks()
    return [
        _op(name, [n for n in own if n.name not in silent] or own, own, captured, clocks)
        for name, own in by_op.items()
    ]


def _reads(nodes: list[Any], captured: _Captured) -> set[str]:
    """The ops whose results ``nodes`` read, glue between them left out."""
    open_nodes = [node.name for node in nodes if node.name not in captured.glue]
    seen: set[str] = set()
    read: set[str] = set()
    while open_nodes:
        for source in captured.sources[open_nodes.pop()] - seen:
            seen.add(source)
            if source in captured.glue:
                open_nodes.append(source)
            elif source in captured.owners:
                read.add(captured.owners[source])
    return read


def _sources(node: Any) -> set[str]:
    """The nodes that ``node`` reads or waits for."""
    return {edge.rpartition(":")[0] for edge in node.input if edge}


def _op(
    name: str, telling: list[Any], nodes: list[Any], captured: _Captured, clocks: Clocks
) -> LoweredOp:
    """The op of ``nodes``, of which ``telling`` do something."""
    own = [node for node in telling if node.name not in captured.glue]
    stream = one(name, "streams", map(_stream, own))
    scope = one(name, "scopes", map(_scope, own))
    aic, aiv = one(name, "core limits", map(_limit, own))
    reads = sorted(_reads(nodes, captured) - {name})
    is_prefetch = stream == PREFETCH_STREAM
    waits = clocks.issue(name, stream, reads)
    return LoweredOp(
        name=name,
        calls=tuple(node.type for node in own),
        glue=tuple(node.type for node in telling if node.name in captured.glue),
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
        shape=captured.shapes.get(own[-1].name, ()),
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
    for peer in ("dest_rank", "src_rank"):
        if peer in node.attr:
            ranks = ranks_of_text(_text(node, "group"))
            return peer_label(ranks[node.attr[peer].i], ranks)
    return group_of_text(_text(node, "group") or _text(node, "group_ep"))
