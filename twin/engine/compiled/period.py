"""How a flat graph repeats: which ops are like those of the layer before, but later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from twin.engine.compiled.flat import FlatGraph, by_number
from twin.engine.compiled.layout import NONE, Ints

Longs = npt.NDArray[np.int64]

_PLACES = 256
"""Places for the weights of one op: its prefetch, then its reads."""


@dataclass(frozen=True)
class Relations:
    """Whom each op knows, as distances in the order of ops.

    ``outs`` counts dependents and ``out_away`` says how far behind they are; ``reads`` and
    ``read_away`` likewise for weights, ``fill_away`` for the weight of a prefetch (0 without
    one) and ``group_away`` for collectives: a weight or collective stands where the first
    op stands that knows it.  Weights are told apart within an op by ``_PLACES``.
    """

    outs: Longs
    out_away: Longs
    reads: Longs
    read_away: Longs
    fill_away: Longs
    group_away: Longs

    @staticmethod
    def of(flat: FlatGraph) -> Relations:
        """The relations in ``flat``."""
        g = flat.arrays
        index = np.arange(len(g.ops))
        outs = (g.ops["end_out"] - g.ops["first_out"]).astype(np.int64)
        reads = flat.arrays.rows["reads"][flat.row_of[g.ops["klass"]]].astype(np.int64)
        places = np.repeat(index, reads) * _PLACES + 1 + _count_up(reads)
        weights = g.read_weight[_ragged(g.ops["first_read"], reads)]
        fillers = np.flatnonzero(g.ops["fills"] != NONE)
        fills = g.ops["fills"][fillers]
        anchor = np.full(len(g.weight_reads), np.iinfo(np.int64).max)
        np.minimum.at(anchor, weights, places)
        np.minimum.at(anchor, fills, fillers * _PLACES)
        fill_away = np.zeros(len(index), np.int64)
        fill_away[fillers] = fillers * _PLACES - anchor[fills]
        group_away = np.zeros(len(index), np.int64)
        members = np.flatnonzero(g.ops["group"] != NONE)
        first = g.group_ops[g.group_start[:-1]]
        group_away[members] = members - first[g.ops["group"][members]]
        return Relations(
            outs,
            np.asarray(g.out - np.repeat(index, outs), np.int64),
            reads,
            np.asarray(places - anchor[weights]),
            fill_away,
            group_away,
        )

    @property
    def reach(self) -> int:
        """The largest distance, in ops."""
        weights = max(self.read_away.max(initial=0), self.fill_away.max(initial=0))
        return int(
            max(
                np.abs(self.out_away).max(initial=0),
                weights // _PLACES + 1,
                self.group_away.max(initial=0),
            )
        )


def repeats(flat: FlatGraph) -> Ints:
    """STEP, FIRST, END and REACH of :class:`twin.engine.compiled.steady.Skip`.

    Two ops are alike when they run in the same queue with the same demand, and what they
    know (dependents, collectives, weights) is alike and lies equally far away.  STEP 0 says
    that nothing repeats.
    """
    g = flat.arrays
    nothing = np.zeros(5, np.int32)
    steps = np.unique(np.diff(g.marks[:-1])) if len(g.marks) > 3 else np.zeros(0)
    if len(steps) != 1:
        return nothing
    step = int(steps[0])
    relations = Relations.of(flat)
    table = np.stack(_columns(flat, relations), axis=1)
    alike = (table[:-step] == table[step:]).all(axis=1)
    # The run of repeating ops that the middle layers belong to.
    middle = int(g.marks[1])
    if middle >= len(alike) or not alike[middle]:
        return nothing
    different = np.flatnonzero(~alike)
    first = int(different[different < middle].max(initial=-1)) + 1
    end = int(different[different > middle].min(initial=len(alike)))
    return np.array([step, first, end, relations.reach, 0], np.int32)


def _columns(flat: FlatGraph, relations: Relations) -> list[npt.NDArray[Any]]:
    """Numbers of each op that are the same where ops are alike."""
    g = flat.arrays
    columns = [g.ops[name] for name in ("queue", "klass", "peer", "release_us")]
    columns += [g.deps, relations.outs, *_spread(relations.out_away, relations.outs)]
    sizes = np.append(np.diff(g.group_start), 0)
    columns += [sizes[g.ops["group"]], relations.group_away]
    # How often a weight is read, and how far away it is, in one number.
    weights = g.read_weight[_ragged(g.ops["first_read"], relations.reads)]
    columns += _spread(relations.read_away * 1024 + g.weight_reads[weights], relations.reads)
    fills = g.ops["fills"]
    read = np.append(g.weight_reads, -1)
    columns.append(relations.fill_away * 1024 + read[fills])
    return columns


def with_more_layers(flat: FlatGraph, more: int) -> FlatGraph | None:
    """The same step with ``more`` layers in the middle; ``None`` where layers do not repeat.

    What is built for few layers thereby serves any number: a layer in the middle differs
    from its neighbours only in when it runs.
    """
    g = flat.arrays
    step, first, end, _, _ = (int(number) for number in repeats(flat))
    if step == 0 or end - first < step:
        return None
    relations = Relations.of(flat)
    index = np.arange(len(g.ops))
    cut = first + step
    if _crosses(relations, index, first, cut):
        return None
    middle = np.tile(np.arange(first, cut), more)
    source = np.concatenate([index[:cut], middle, index[cut:]])
    place = np.arange(len(source))
    ops = g.ops[source].copy()

    outs = relations.outs[source]
    out = np.repeat(place, outs) + relations.out_away[_ragged(g.ops["first_out"][source], outs)]
    ops["end_out"] = np.cumsum(outs)
    ops["first_out"] = ops["end_out"] - outs
    reads = relations.reads[source]
    starts = np.cumsum(relations.reads) - relations.reads
    read_at = np.repeat(place, reads) * _PLACES + 1 + _count_up(reads)
    read_anchor = read_at - relations.read_away[_ragged(starts[source], reads)]
    fillers = np.flatnonzero(ops["fills"] != NONE)
    fill_anchor = fillers * _PLACES - relations.fill_away[source[fillers]]
    anchors, weights = np.unique(np.append(read_anchor, fill_anchor), return_inverse=True)
    read_weight = weights[: len(read_anchor)].astype(np.int32)
    ops["fills"][fillers] = weights[len(read_anchor) :]
    ops["first_read"] = np.cumsum(reads) - reads
    members = np.flatnonzero(ops["group"] != NONE)
    leaders, groups = np.unique(
        members - relations.group_away[source[members]], return_inverse=True
    )
    ops["group"][members] = groups
    group_order, group_start = by_number(groups, len(leaders))
    queue_ops, queue_start = by_number(ops["queue"], flat.queues)
    is_mark = np.zeros(len(index), bool)
    is_mark[g.marks] = True
    arrays = g._replace(
        ops=ops.view(np.recarray),
        deps=g.deps[source],
        out=out.astype(np.int32),
        read_weight=read_weight,
        queue_start=queue_start,
        queue_ops=queue_ops,
        group_start=group_start,
        group_ops=members[group_order].astype(np.int32),
        weight_reads=np.bincount(read_weight, minlength=len(anchors)).astype(np.int32),
        marks=np.flatnonzero(is_mark[source]).astype(np.int32),
    )
    return replace(flat, arrays=arrays)


def _crosses(relations: Relations, index: Longs, first: int, cut: int) -> bool:
    """Whether an op before the repeating ones knows one behind the cut, or the other way."""
    from_ops = [np.repeat(index, relations.outs)]
    to_ops = [from_ops[0] + relations.out_away]
    for ops, away in (
        (np.repeat(index, relations.reads), relations.read_away // _PLACES),
        (index, relations.fill_away // _PLACES),
        (index, relations.group_away),
    ):
        from_ops.append(ops)
        to_ops.append(ops - away)
    one, other = np.concatenate(from_ops), np.concatenate(to_ops)
    low, high = np.minimum(one, other), np.maximum(one, other)
    return bool(((low < first) & (high >= cut)).any())


def _count_up(counts: Longs) -> Longs:
    """0, 1, ... for each of ``counts``."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _ragged(starts: npt.NDArray[Any], counts: Longs) -> Longs:
    """start, start + 1, ... for each of ``starts``, as many as it counts."""
    return np.repeat(starts, counts) + _count_up(counts)


def _spread(values: npt.NDArray[Any], counts: Longs) -> list[npt.NDArray[Any]]:
    """Ragged ``values`` as columns: the k-th value of each op, where it has one."""
    starts = np.cumsum(counts) - counts
    columns = []
    for k in range(int(counts.max(initial=0))):
        has = counts > k
        column = np.full(len(counts), np.iinfo(np.int64).min, np.int64)
        column[has] = values[starts[has] + k]
        columns.append(column)
    return columns
