"""npugraph_ex: the graph whose calls are captured, with its streams, limits and events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from runtime_npu.backends.npu_order import TORCHAIRS_MAIN
from runtime_npu.lower.groups import group_of_node
from runtime_npu.lower.lowered import LoweredOp, one, unplanned
from runtime_npu.lower.races import Races
from runtime_npu.lower.trace import Traced, is_glue, op_of, shape_of, written
from runtime_npu.npu.compiler import compiler_config
from runtime_npu.record import MAIN_STREAM
from twin.graph.step_graph import PREFETCH_STREAM

SILENT = frozenset(
    (
        "getitem",
        "get_stream_limit",
        "_c10d_functional.wait_tensor",
        "aten.empty",
        "empty",
        "npu._npu_fused_infer_attention_score_v2_get_max_workspace",
        *(
            f"aten.{view}"
            for view in (
                "alias",
                "detach",
                "expand",
                "permute",
                "reshape",
                "select",
                "slice",
                "split",
                "split_with_sizes",
                "squeeze",
                "t",
                "transpose",
                "unsqueeze",
                "view",
            )
        ),
    )
)
"""Calls that launch nothing."""


def lower_captured(traced: Traced, mode: FakeTensorMode) -> list[LoweredOp]:
    """The ops of ``traced`` as they would be captured, in order."""
    torchair: Any = import_module("torchair")
    backend = torchair.get_npu_backend(compiler_config=compiler_config("npugraph_ex"))
    with _captured() as captured, mode, torch.no_grad():
        backend(traced.graph, list(traced.inputs))
    return _Reader(traced.graph.graph).read(captured[-1].fx_graph.graph)


@contextmanager
def _captured() -> Iterator[list[Any]]:
    """Catch the graphs that torchair has made ready for capture."""
    converter: Any = import_module("torchair._acl_concrete_graph.fx2acl_converter")
    concrete = converter.AclConcreteGraph
    optimise, caught = concrete.optimize_graph_without_runtime, []

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = optimise(self, *args, **kwargs)
        caught.append(self)
        return result

    concrete.optimize_graph_without_runtime = noting
    try:
        yield caught
    finally:
        concrete.optimize_graph_without_runtime = optimise


@dataclass(frozen=True, slots=True)
class _Launch:
    """One call that launches something, and what was in force."""

    call: str
    stream: str
    limit: tuple[int | None, int | None]
    waits: tuple[str, ...]
    node: torch.fx.Node


@dataclass(slots=True)
class _Stream:
    """What a stream was told so far."""

    limits: list[tuple[int, int]] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    last: str | None = None


class _Reader:
    """Follows the graph's calls, as the host will make them."""

    def __init__(self, traced: torch.fx.Graph) -> None:
        self._forgotten: dict[str, deque[str]] = {}
        for node in traced.nodes:
            name = op_of(node)
            if name is not None and node.op == "call_function":
                self._forgotten.setdefault(_call_name(node), deque()).append(name)
        self._streams: dict[str, _Stream] = {}
        self._entered = [MAIN_STREAM]
        self._asked: dict[torch.fx.Node, str] = {}
        self._events: dict[str, str] = {}
        self._ops: dict[str, list[_Launch]] = {}
        self._races = Races()
        self._sources: dict[torch.fx.Node, torch.fx.Node] = {}
        self._glue: dict[str, list[str]] = {}

    def read(self, graph: torch.fx.Graph) -> list[LoweredOp]:
        """The ops of ``graph``."""
        for node in graph.nodes:
            if node.op == "call_function":
                self._call(node)
        return [
            _op(name, own, self._glue.get(name, ()), self._races.faults(name))
            for name, own in self._ops.items()
        ]

    def _call(self, node: torch.fx.Node) -> None:
        name = _call_name(node)
        if name == "air.scope_enter":
            keys, values = node.args[:2]
            labels: dict[str, str] = dict(zip(keys, values, strict=True))  # type: ignore[arg-type]
            self._entered.append(labels.get("_user_stream_label", self._entered[-1]))
        elif name == "air.scope_exit":
            self._entered.pop()
        elif name == "current_stream":
            self._asked[node] = self._entered[-1]
        elif name == "set_stream_limit":
            self._limit(*node.args)
        elif name in ("air.tagged_event_record", "air.tagged_event_wait"):
            self._event(name, *node.args)
        elif name == "air.record_tagged_stream":
            tensor, tag = node.args
            assert isinstance(tensor, torch.fx.Node)
            label = MAIN_STREAM if tag == TORCHAIRS_MAIN else str(tag)
            self._races.keep(self._source(tensor), label)
        elif not name.startswith("air.") and name not in SILENT:
            self._launch(node, name)
        elif node.all_input_nodes:
            self._sources[node] = self._source(node.all_input_nodes[0])

    def _source(self, node: torch.fx.Node) -> torch.fx.Node:
        """The call that gave ``node``, which may be a view of it."""
        return self._sources.get(node, node)

    def _changed(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The calls whose results ``node`` writes in place."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return []
        changed = written(node.target, node.args, node.kwargs)
        return [self._source(one) for one in changed if isinstance(one, torch.fx.Node)]

    def _stream(self, label: str) -> _Stream:
        return self._streams.setdefault(label, _Stream())

    def _limit(self, asked: Any, cube: Any, vector: Any) -> None:
        """Numbers set a limit; what was asked for before sets it back."""
        limits = self._stream(self._asked[asked]).limits
        if isinstance(cube, int):
            limits.append((cube, vector))
        else:
            limits.pop()

    def _event(self, name: str, tag: Any, is_torchairs: Any = False) -> None:
        label, is_wait = self._entered[-1], name == "air.tagged_event_wait"
        (self._races.wait if is_wait else self._races.record)((tag, is_torchairs), label)
        if is_torchairs:
            return  # where a stream of the graph begins and ends
        stream = self._stream(label)
        if is_wait:
            stream.waits.append(self._events[tag])
        else:
            assert stream.last is not None
            self._events[tag] = stream.last

    def _launch(self, node: torch.fx.Node, call: str) -> None:
        label = self._entered[-1]
        stream, name = self._stream(label), op_of(node)
        if name is None:
            # torchair puts another form of the op in its place, and forgets whose it was.
            forgotten = self._forgotten.get(call)
            name = forgotten.popleft() if forgotten else unplanned(call, len(self._ops))
        reads, is_data = map(self._source, node.all_input_nodes), call != "npu.npu_prefetch"
        self._races.call(name, label, reads, (node, *self._changed(node)), uses_data=is_data)
        if is_glue(node):
            self._glue.setdefault(name, []).append(call)
            return
        waits, stream.waits = tuple(stream.waits), []
        stream.last = name
        limit = stream.limits[-1] if stream.limits else (None, None)
        launch = _Launch(call, label, limit, waits, node)
        self._ops.setdefault(name, []).append(launch)


def _op(
    name: str, launches: Sequence[_Launch], glue: Sequence[str], races: tuple[str, ...]
) -> LoweredOp:
    stream = one(name, "streams", (launch.stream for launch in launches))
    limit = one(name, "core limits", (launch.limit for launch in launches))
    aic, aiv = (None, None) if stream == PREFETCH_STREAM else limit
    groups = [group for group in (group_of_node(launch.node) for launch in launches) if group]
    return LoweredOp(
        name=name,
        calls=tuple(launch.call for launch in launches),
        glue=tuple(glue),
        stream=stream,
        aic=aic,
        aiv=aiv,
        scope=None,
        waits=tuple(wait for launch in launches for wait in launch.waits),
        prefetch_bytes=sum(_prefetch_bytes(launch) for launch in launches),
        group=groups[0] if groups else None,
        shape=shape_of(launches[-1].node),
        races=races,
    )


def _call_name(node: torch.fx.Node) -> str:
    """``npu.npu_swiglu``, ``aten.add``; of a plain function its name."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).rpartition(".")[0]
    return str(getattr(node.target, "__name__", node.target))


def _prefetch_bytes(launch: _Launch) -> int:
    if launch.call != "npu.npu_prefetch":
        return 0
    size = launch.node.args[2]
    assert isinstance(size, int)
    return size
