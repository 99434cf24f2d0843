"""How a flat graph repeats: which ops are like those of the layer before, but later."""

from __future__ import annotations

import numpy as np

from twin.engine.compiled.flat import FlatGraph
from twin.engine.compiled.layout import NONE, Ints

_SLOTS = 256
"""Places for the weights of one op: its prefetch, then its reads."""


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
    signature, reach = _signatures(flat)
    alike = signature[:-step] == signature[step:]
    # The run of repeating ops that the middle layers belong to.
    middle = int(g.marks[1])
    if middle >= len(alike) or not alike[middle]:
        return nothing
    different = np.flatnonzero(~alike)
    first = int(different[different < middle].max(initial=-1)) + 1
    end = int(different[different > middle].min(initial=len(alike)))
    return np.array([step, first, end, reach, 0], np.int32)


def _signatures(flat: FlatGraph) -> tuple[np.ndarray, int]:
    """A number for each op, equal for ops that are alike; and the largest distance known."""
    g = flat.arrays
    count = len(g.ops)
    index = np.arange(count)
    columns = [g.ops[name] for name in ("queue", "klass", "peer", "release_us")]
    columns.append(g.deps)
    distances: list[np.ndarray] = []

    outs = g.ops["end_out"] - g.ops["first_out"]
    away = g.out - np.repeat(index, outs)
    distances.append(away)
    columns += [outs, *_spread(away, outs)]

    group = g.ops["group"]
    if (group != NONE).any():
        anchors = g.group_ops[g.group_start[:-1]]
        sizes = np.diff(g.group_start)
        last = g.group_ops[g.group_start[1:] - 1]
        distances.append(last - anchors)
        columns.append(np.where(group == NONE, -1, index - anchors[group]))
        columns.append(np.where(group == NONE, 0, sizes[group]))

    reads = flat.arrays.rows["reads"][flat.row_of[g.ops["klass"]]]
    readers = np.repeat(index, reads)
    place = np.arange(len(readers)) - np.repeat(np.cumsum(reads) - reads, reads)
    weight = g.read_weight[np.repeat(g.ops["first_read"], reads) + place]
    fillers = np.flatnonzero(g.ops["fills"] != NONE)
    weights = np.concatenate([weight, g.ops["fills"][fillers]])
    places = np.concatenate([readers * _SLOTS + place + 1, fillers * _SLOTS])
    anchor = np.full(len(g.weight_reads), np.iinfo(np.int64).max)
    np.minimum.at(anchor, weights, places)
    away = places - anchor[weights]
    distances.append(away // _SLOTS + 1)
    columns += _spread(away[: len(readers)] * 1024 + g.weight_reads[weight], reads)
    fill = np.full(count, -1, np.int64)
    fill[fillers] = away[len(readers) :] * 1024 + g.weight_reads[g.ops["fills"][fillers]]
    columns.append(fill)

    table = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
    _, signature = np.unique(table, axis=0, return_inverse=True)
    return signature.reshape(-1), int(max(np.abs(d).max(initial=0) for d in distances))


def _spread(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Ragged ``values`` as columns: the k-th value of each op, where it has one."""
    starts = np.cumsum(counts) - counts
    columns = []
    for k in range(int(counts.max(initial=0))):
        has = counts > k
        column = np.full(len(counts), np.iinfo(np.int64).min, np.int64)
        column[has] = values[starts[has] + k]
        columns.append(column)
    return columns
