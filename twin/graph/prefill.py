"""Build the StepGraph of one prefill step: eager launches, host reads, micro-batches in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops import HostRead
from twin.deployment import Role
from twin.graph.blocks import embed_ops
from twin.graph.placement import ALL_CORES, Place
from twin.graph.prefill_blocks import layer_ops, tail_ops
from twin.graph.role_writer import Pass, layer_passes
from twin.graph.shapes import StepShapes, step_shapes
from twin.graph.step_graph import Die, StepGraph
from twin.graph.writer import OUTSIDE, GraphWriter
from twin.model_spec import ModelSpec
from twin.names import HOST_STREAM, JOIN, is_communication
from twin.schedule import Schedule

_ROLE: Role = "colocated"
_DIE = 0


@dataclass(frozen=True, slots=True)
class _Item:
    """One op of a micro-batch's chain."""

    run: Pass
    name: str
    spec: OpSpec

    @property
    def is_communication(self) -> bool:
        return is_communication(self.name)

    @property
    def closes_period(self) -> bool:
        """Whether a layer of the first micro-batch ends here."""
        return self.name == JOIN and self.run.micro_batch == 0


def build_prefill_graph(
    schedule: Schedule, model: ModelSpec, hardware: Hardware, *, layers: int
) -> StepGraph:
    """The ops of one prefill step on one die, which stands for all (no skew).

    A micro-batch is one chain of ops.  Chains are cut behind their exchanges and issued in
    turn, piece by piece; with a link stream the exchanges of one micro-batch run beside what
    the others compute (one micro-batch alone has nothing beside them and stays on main).  The
    host launches op after op and stops where it reads counts.
    """
    shapes = step_shapes(schedule, model)
    writer = GraphWriter(
        hardware, schedule.deployment.graph_mode, [Die(_DIE, _ROLE)], host_reads=True
    )
    overlaps = len(shapes.micro_batches) > 1 and "link" in schedule.stages[0].streams
    link = "link" if overlaps else "main"
    last = _chain(writer, embed_ops(shapes, shapes.sequences), ())
    ends = dict.fromkeys(range(len(shapes.micro_batches)), last)
    for item in _in_turn(shapes, layers):
        before = (ends[item.run.micro_batch],)
        index = writer.add(item.run.prefix + item.name, item.spec, _DIE, _place(item, link), before)
        ends[item.run.micro_batch] = index
        if item.closes_period:
            writer.mark_period(index)
    _chain(writer, tail_ops(shapes), tuple(sorted(set(ends.values()))))
    return writer.graph()


def _place(item: _Item, link: str) -> Place:
    if isinstance(item.spec, HostRead):
        return Place(HOST_STREAM, ALL_CORES, None)
    return Place(link, ALL_CORES, None) if item.is_communication else OUTSIDE


def _chain(writer: GraphWriter, ops: Sequence[tuple[str, OpSpec]], deps: tuple[int, ...]) -> int:
    for name, spec in ops:
        deps = (writer.add(name, spec, _DIE, OUTSIDE, deps),)
    return deps[0]


def _in_turn(shapes: StepShapes, layers: int) -> Iterator[_Item]:
    """All layers' ops of all micro-batches in issue order."""
    passes = layer_passes(layers, len(shapes.micro_batches))
    pieces = [
        _pieces(_items(shapes, [run for run in passes if run.micro_batch == number]))
        for number in range(len(shapes.micro_batches))
    ]
    for together in zip_longest(*pieces, fillvalue=()):
        for piece in together:
            yield from piece


def _items(shapes: StepShapes, passes: Sequence[Pass]) -> Iterator[_Item]:
    for run in passes:
        sequences = shapes.micro_batches[run.micro_batch]
        for name, spec in layer_ops(shapes, sequences, run.key):
            yield _Item(run, name, spec)


def _pieces(items: Iterator[_Item]) -> list[tuple[_Item, ...]]:
    """A chain cut behind every run of exchanges."""
    pieces: list[tuple[_Item, ...]] = []
    piece: list[_Item] = []
    for item in items:
        if piece and piece[-1].is_communication and not item.is_communication:
            pieces.append(tuple(piece))
            piece = []
        piece.append(item)
    return [*pieces, tuple(piece)]
