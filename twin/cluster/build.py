"""The step of a whole deployment as flat arrays: one group of dies, copied and coupled.

The template is what :func:`twin.graph.build.build_step_graph` makes: one die, or with AFD one
FFN die and the attention dies that it serves.  Copies of it run side by side; what couples
them are collectives, which here wait for all members of their real groups.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hardware_models.demand import Demand
from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from hardware_models.ops import Collective, Combine, Dispatch, ExpertWait
from twin.deployment import Role
from twin.engine.compiled.flat import FlatGraph, RowTable, by_number, flatten
from twin.engine.compiled.layout import NONE, GraphArrays
from twin.graph.build import build_step_graph
from twin.graph.shapes import StepShapes, step_shapes
from twin.graph.step_graph import Die, Op, StepGraph
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cluster:
    """All dies of a deployment.

    ``template`` holds the ops of one copy; op ``i`` of copy ``c`` has the number
    ``c x len(template.ops) + i``, die ``d`` of copy ``c`` the number ``c x dies of a copy + d``.
    ``flat`` has the demands of dies that are all alike; classes are rows of ``table``.
    """

    schedule: Schedule
    model: ModelSpec
    hardware: Hardware
    template: StepGraph
    copies: int
    table: RowTable
    flat: FlatGraph

    @cached_property
    def shapes(self) -> StepShapes:
        """Sizes of the step."""
        return step_shapes(self.schedule, self.model)

    @property
    def dies(self) -> int:
        """Dies of all roles."""
        return self.copies * len(self.template.dies)

    @property
    def attention_dies(self) -> int:
        """Dies of a copy that hold attention."""
        return self.schedule.deployment.attention_ratio

    def rank(self, copy: int, die: int) -> tuple[Role, int]:
        """Role and rank (within the role) of a die of a copy."""
        if die < self.attention_dies:
            return self.template.dies[die].role, copy * self.attention_dies + die
        return "ffn", copy

    def rank_name(self, copy: int, die: int) -> str:
        """For example ``attention 17``."""
        role, rank = self.rank(copy, die)
        return f"{role} {rank}"

    def step_graph(self) -> StepGraph:
        """The same as objects, one an op, with the demands and heads that ``flat`` has now.

        This is for errors and for the reference engine: large clusters take seconds and
        gigabytes.
        """
        ops = [self._op(copy, op) for copy in range(self.copies) for op in self.template.ops]
        dies = tuple(self.die(number) for number in range(self.dies))
        return replace(self.template, ops=tuple(ops), dies=dies, period_marks=())

    def die(self, number: int) -> Die:
        """A die of the cluster by its number."""
        return Die(number, self.template.dies[number % len(self.template.dies)].role)

    def ops_of(self, die: int) -> list[Op]:
        """The ops of one die, as :meth:`step_graph` has them."""
        copy, own = divmod(die, len(self.template.dies))
        return [self._op(copy, op) for op in self.template.ops if op.die == own]

    def _op(self, copy: int, op: Op) -> Op:
        count, width = len(self.template.ops), len(self.template.dies)
        index = copy * count + op.index
        group = int(self.flat.arrays.ops["group"][index])
        return replace(
            op,
            index=index,
            die=copy * width + op.die,
            deps=tuple(copy * count + dep for dep in op.deps),
            rendezvous=None if group == NONE else f"{op.name} group {group}",
            peer=None if op.peer is None else copy * width + op.peer,
            demand=self._demand(op, index),
        )

    def _demand(self, op: Op, index: int) -> Demand:
        g = self.flat.arrays
        demand = self.table.demand(int(g.ops["klass"][index]))
        weights = tuple(
            replace(read, weight=named.weight)
            for read, named in zip(demand.weights, op.demand.weights, strict=True)
        )
        scale = float(g.head_scale[index]) if len(g.head_scale) else 1.0
        head_us = demand.head_us * scale
        return replace(demand, weights=weights, fills=op.demand.fills, head_us=head_us)


def build_cluster(
    schedule: Schedule, model: ModelSpec, hardware: Hardware, *, layers: int | None = None
) -> Cluster:
    """All dies of the schedule's deployment; ``layers`` keeps only the first so many layers.

    Raises:
        InputError: the schedule asks for something that is not simulated, or A:F is no
            whole number.
        DeadlockError: an op asks for more cores than its die has.
    """
    if schedule.workload.is_prefill:
        raise InputError(
            "workload.phase", "prefill", "decode: clusters of prefill are not simulated"
        )
    _check_ratio(schedule)
    template = build_step_graph(schedule, model, hardware, layers=layers)
    table = RowTable()
    one = flatten(template, table)
    deployment = schedule.deployment
    copies = deployment.attention.dies // deployment.attention_ratio
    flat = _copied(template, one, copies, deployment.attention_ratio)
    return Cluster(schedule, model, hardware, template, copies, table, flat)


def _check_ratio(schedule: Schedule) -> None:
    roles = schedule.deployment.roles
    if schedule.deployment.is_afd and roles["attention"].dies % roles["ffn"].dies:
        ratio = f"{roles['attention'].dies}:{roles['ffn'].dies}"
        allowed = "a whole number of attention dies for each FFN die (a cluster is copies of both)"
        raise InputError("deployment.roles", ratio, allowed)


def _copied(template: StepGraph, one: FlatGraph, copies: int, ratio: int) -> FlatGraph:
    g = one.arrays
    count, dies, queues = len(g.ops), one.dies, one.queues
    copy = np.repeat(np.arange(copies), count)
    ops = np.tile(np.asarray(g.ops), copies)
    # Classes of the template are its rows: a die may then get any other row.
    ops["klass"] = one.row_of[ops["klass"]]
    for name, size in (
        ("queue", queues),
        ("first_out", len(g.out)),
        ("end_out", len(g.out)),
        ("first_read", len(g.read_weight)),
        ("peer", dies),
    ):
        ops[name] += (copy * size).astype(np.int32)
    fills = ops["fills"] != NONE
    ops["fills"][fills] += (copy * len(g.weight_reads))[fills].astype(np.int32)
    groups = _groups(template, copies, ratio)
    ops["group"] = groups
    members = np.flatnonzero(groups != NONE)
    order, group_start = by_number(groups[members], int(groups.max(initial=NONE)) + 1)
    queue_ops, queue_start = by_number(ops["queue"], queues * copies)
    arrays = GraphArrays(
        ops=ops.view(np.recarray),
        rows=g.rows,
        deps=np.tile(g.deps, copies),
        out=_shifted(g.out, copies, count),
        read_weight=_shifted(g.read_weight, copies, len(g.weight_reads)),
        read_bytes=g.read_bytes,
        die_queues=np.append(_shifted(g.die_queues[:-1], copies, queues), queues * copies).astype(
            np.int32
        ),
        queue_die=_shifted(g.queue_die, copies, dies),
        queue_start=queue_start,
        queue_ops=queue_ops,
        group_start=group_start,
        group_ops=members[order].astype(np.int32),
        weight_reads=np.tile(g.weight_reads, copies),
        marks=np.zeros(0, np.int32),
        head_scale=np.zeros(0),
        limits=g.limits,
    )
    return replace(one, arrays=arrays, row_of=np.arange(len(g.rows), dtype=np.int32))


def _shifted(values: npt.NDArray[np.int32], copies: int, by: int) -> npt.NDArray[np.int32]:
    """``values`` for each copy, ``by`` more each time."""
    return (np.tile(values, copies) + np.repeat(np.arange(copies) * by, len(values))).astype(
        np.int32
    )


def _groups(template: StepGraph, copies: int, ratio: int) -> npt.NDArray[np.int32]:
    """The collective of each op of all copies: consecutive ranks meet in groups of their size."""
    count = len(template.ops)
    groups = np.full(copies * count, NONE, np.int64)
    names: dict[Hashable, int] = {}
    for op in template.ops:
        size = group_size(op)
        if size < 2:
            continue
        name = names.setdefault((op.name, op.die < ratio), len(names))
        ranks = np.arange(copies) * ratio + op.die if op.die < ratio else np.arange(copies)
        groups[op.index :: count] = name * copies * ratio + ranks // size
    met = groups != NONE
    _, groups[met] = np.unique(groups[met], return_inverse=True)
    return groups.astype(np.int32)


def group_size(op: Op) -> int:
    """How many ranks meet in ``op``: 1 where it needs nobody."""
    if isinstance(op.spec, Collective):
        return op.spec.group
    if isinstance(op.spec, Dispatch | Combine):
        return op.spec.ep
    if isinstance(op.spec, ExpertWait):
        return op.spec.group
    return 1
