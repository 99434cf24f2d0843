"""Evaluating many schedules that differ only in numbers: core limits, bytes, hardware.

Such schedules make the same ops with other demands.  A :class:`Plan` is built once for a
schedule; a :class:`Point` is what another schedule, or other hardware, changes in it; a
:class:`Grid` combines points of independent knobs without building anything per candidate.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hardware_models.errors import TwinError
from hardware_models.hardware import Hardware
from twin.deployment import Role
from twin.engine.checks import check_graph
from twin.engine.compiled.bound import ALWAYS, Option, StepBound
from twin.engine.compiled.engine import Step
from twin.engine.compiled.flat import FlatGraph, RowTable, flatten, rates_of
from twin.engine.compiled.layout import Floats, Ints
from twin.engine.compiled.period import with_more_layers
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.graph.build import build_step_graph
from twin.graph.step_graph import Op, StepGraph
from twin.model_spec import ModelSpec
from twin.names import parse_name
from twin.schedule import Schedule

# Layers that are built; those in the middle are then copied.  Where layers do not repeat
# among so few, all are built.
_BUILT_LAYERS = (4, 5)
# Layers built to see what changes: the first, one in the middle, the last.
_PROBE_LAYERS = 3
_CHUNK = 4096
_UNSET = -1


class OtherStructureError(TwinError):
    """A schedule does not have the ops of the plan: it needs a plan of its own."""


@dataclass(frozen=True)
class Point:
    """Numbers for a plan: the row of each class of ops, and the rates of the hardware."""

    rows: Ints
    rates: Floats


@dataclass(frozen=True)
class Answers:
    """One number per candidate, in us; NaN where the step cannot finish.

    ``layer_us`` is the time from the end of one layer to the end of the next.
    """

    step_us: Floats
    layer_us: Floats


class Plan:
    """The step of one schedule, ready to be run with other numbers.

    Raises:
        InputError: the schedule asks for something that is not simulated.
        DeadlockError: an op asks for more cores than its die has.
    """

    def __init__(self, schedule: Schedule, model: ModelSpec, hardware: Hardware) -> None:
        self._schedule, self._model, self._hardware = schedule, model, hardware
        self._table = RowTable()
        self._classes: dict[tuple[Hashable, int], int] = {}
        self.step = Step(self._flat_step())
        self.point = Point(self.step.flat.row_of, self.step.flat.rates)

    def _flat_step(self) -> FlatGraph:
        layers = self._model.num_layers
        for built in (*(n for n in _BUILT_LAYERS if n < layers), layers):
            graph = self._graph(self._schedule, self._hardware, built)
            kinds = _kinds(graph)
            flat = flatten(graph, self._table, kinds)
            whole = with_more_layers(flat, layers - built) if built < layers else flat
            if whole is not None:
                numbers = flat.arrays.ops["klass"].tolist()
                rows = flat.row_of[numbers].tolist()
                self._classes = dict(zip(zip(kinds, rows, strict=True), numbers, strict=True))
                return whole
        raise AssertionError("a step with all its layers needs no copies")

    def _graph(self, schedule: Schedule, hardware: Hardware, layers: int) -> StepGraph:
        return build_step_graph(schedule, self._model, hardware, layers=layers)

    @cached_property
    def _probe(self) -> tuple[StepGraph, list[int]]:
        """The plan's own schedule in few layers, and the class of each op."""
        layers = min(_PROBE_LAYERS, self._model.num_layers)
        graph = self._graph(self._schedule, self._hardware, layers)
        rows = (self._table.add(op.demand, op.cores, op.gap_us) for op in graph.ops)
        return graph, [self._classes[key] for key in zip(_kinds(graph), rows, strict=True)]

    def point_of(self, schedule: Schedule, hardware: Hardware | None = None) -> Point:
        """What ``schedule`` on ``hardware`` (default: the plan's) changes.

        It may leave out prefetches that the plan's schedule has.

        Raises:
            OtherStructureError: it has other ops than the plan, or in another order.
            InputError: the schedule asks for something that is not simulated.
            DeadlockError: an op asks for more cores than its die has.
        """
        hardware = hardware or self._hardware
        probe, classes = self._probe
        graph = self._graph(schedule, hardware, min(_PROBE_LAYERS, self._model.num_layers))
        check_graph(graph)
        for name in ("aic_count", "aiv_count"):
            if hardware[name] != self._hardware[name]:
                raise OtherStructureError(f"{name} is {hardware[name]}, not as in the plan")
        rows = np.full(len(self.point.rows), _UNSET, np.int32)
        for klass, row in zip(classes, self._rows(probe, graph), strict=True):
            if row == _UNSET:
                continue
            if rows[klass] not in (_UNSET, row):
                raise OtherStructureError("ops alike in the plan are not alike here")
            rows[klass] = row
        # Only the first op of a stream has no gap; what came first here may not in the plan.
        unset = rows == _UNSET
        rows[unset] = self.point.rows[unset]
        return Point(rows, rates_of(hardware))

    def _rows(self, probe: StepGraph, graph: StepGraph) -> list[int]:
        """The row that each op of ``probe`` gets from ``graph``; _UNSET where it does not say."""
        rows: list[int] = []
        place: dict[int, int] = {}
        started: set[tuple[int, str]] = set()
        started_here: set[tuple[int, str]] = set()
        others = iter(graph.ops)
        other = next(others, None)
        for op in probe.ops:
            queue = (op.die, op.stream)
            if other is None or (op.name, op.die) != (other.name, other.die):
                if op.demand.fills is None or op.release_us:
                    raise OtherStructureError(f"{op.name} is not there, or elsewhere")
                rows.append(self._table.absent())
                started.add(queue)
                continue
            _compare(op, other, place)
            place[other.index] = op.index
            is_first = queue not in started
            is_first_here = queue not in started_here
            row = self._table.add(other.demand, other.cores, other.gap_us)
            rows.append(row if is_first == is_first_here else _UNSET)
            started.add(queue)
            started_here.add(queue)
            other = next(others, None)
        if other is not None:
            raise OtherStructureError(f"{other.name} is not in the plan")
        return rows

    def evaluate(
        self, points: Sequence[Point], options: EngineOptions = DEFAULT_OPTIONS
    ) -> Answers:
        """Run the step once for each of ``points``; repeating layers are skipped."""
        rows = np.array([point.rows for point in points], np.int32)
        rates = np.array([point.rates for point in points])
        self.step.set_rows(self._table)
        return self.run(rows, options, rates)

    def run(self, rows: Ints, options: EngineOptions, rates: Floats | None = None) -> Answers:
        """Run the step for each line of ``rows`` and, where given, of ``rates``."""
        chunks = [np.zeros((0, 3))]
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            chunk = None if rates is None else rates[part]
            places = None if chunk is None else np.arange(len(chunk), dtype=np.int32)
            chunks.append(
                self.step.run_many(rows[part], options, rates=chunk, rates_of=places, steady=True)
            )
        found = np.concatenate(chunks)
        stuck = found[:, 2] > 0.0
        return Answers(np.where(stuck, np.nan, found[:, 0]), np.where(stuck, np.nan, found[:, 1]))

    def grid(self, knobs: Mapping[str, Sequence[Schedule]]) -> Grid:
        """All combinations of ``knobs``: each gives, by level, the plan's schedule changed.

        Raises:
            OtherStructureError: see :meth:`point_of`; or two knobs change the same ops.
        """
        return self.combined(
            {name: [self.point_of(s) for s in each] for name, each in knobs.items()}
        )

    def combined(self, knobs: Mapping[str, Sequence[Point]]) -> Grid:
        """All combinations of ``knobs``: each gives, by level, what it changes in the plan.

        Raises:
            OtherStructureError: two knobs change the same ops.
        """
        self.step.set_rows(self._table)
        return Grid(self, knobs)


class Grid:
    """Candidates as levels of knobs that change different ops."""

    def __init__(self, plan: Plan, knobs: Mapping[str, Sequence[Point]]) -> None:
        self._plan = plan
        self.sizes = tuple(len(points) for points in knobs.values())
        self._tables: list[tuple[Ints, Ints]] = []
        owner: dict[int, str] = {}
        for name, points in knobs.items():
            table = np.stack([point.rows for point in points])
            classes = np.flatnonzero((table != plan.point.rows).any(axis=0))
            for klass in classes.tolist():
                if klass in owner:
                    raise OtherStructureError(f"{owner[klass]} and {name} change the same ops")
                owner[klass] = name
            self._tables.append((classes.astype(np.int32), table[:, classes]))

    def evaluate(
        self, levels: npt.NDArray[np.integer], options: EngineOptions = DEFAULT_OPTIONS
    ) -> Answers:
        """Run the step for each line of ``levels`` ([candidate, knob], places in the levels)."""
        parts = [
            self._plan.run(self.rows(levels[start : start + _CHUNK]), options)
            for start in range(0, len(levels), _CHUNK)
        ]
        return Answers(
            np.concatenate([np.zeros(0), *(part.step_us for part in parts)]),
            np.concatenate([np.zeros(0), *(part.layer_us for part in parts)]),
        )

    def bound(self, options: EngineOptions = DEFAULT_OPTIONS) -> StepBound:
        """Lower bounds for sets of candidates; axis ``i`` is knob ``i``."""
        flat = self._plan.step.flat
        free = np.ones(len(flat.row_of), np.bool_)
        rows: list[Option] = []
        for axis, (classes, table) in enumerate(self._tables):
            free[classes] = False
            rows += [
                Option(int(klass), int(row), axis, level)
                for level, line in enumerate(table)
                for klass, row in zip(classes, line, strict=True)
            ]
        rows += [
            Option(int(klass), int(self._plan.point.rows[klass]), ALWAYS, 0)
            for klass in np.flatnonzero(free)
        ]
        return StepBound(flat, rows, contention=options.contention)

    def rows(self, levels: npt.NDArray[np.integer]) -> Ints:
        """The rows of the plan's classes of ops for each line of ``levels``."""
        rows = np.tile(self._plan.point.rows, (len(levels), 1))
        for knob, (classes, table) in enumerate(self._tables):
            rows[:, classes] = table[levels[:, knob]]
        return rows


def _kinds(graph: StepGraph) -> list[tuple[Role, int, str]]:
    """Role, micro-batch and name within its layer of each op: what makes ops alike in a plan."""
    roles = {die.index: die.role for die in graph.dies}
    names = (parse_name(op.name) for op in graph.ops)
    return [
        (roles[op.die], name.micro_batch, name.local)
        for op, name in zip(graph.ops, names, strict=True)
    ]


def _compare(op: Op, other: Op, place: Mapping[int, int]) -> None:
    """Refuse ``other`` where it differs from ``op`` in more than numbers."""
    weights = [read.weight for read in op.demand.weights]
    fills = op.demand.fills and op.demand.fills.weight
    same = (
        op.stream == other.stream
        and op.deps == tuple(place.get(dep, _UNSET) for dep in other.deps)
        and op.rendezvous == other.rendezvous
        and op.peer == other.peer
        and op.release_us == other.release_us
        and weights == [read.weight for read in other.demand.weights]
        and fills == (other.demand.fills and other.demand.fills.weight)
    )
    if not same:
        raise OtherStructureError(f"{op.name} has another place in the step")
