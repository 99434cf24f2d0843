"""Arrays of the compiled engine: what a graph is, and what a run works on.

Graph arrays are never written by a run.  Dies and streams are numbered by position: dies in
the order of their index, queues (the streams of all dies) by die, then by the stream's name.
Amounts are bytes, times us, rates bytes/us.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from twin.engine.timeline import Bound

Records: TypeAlias = Any
"""A NumPy record array; its items have the fields as attributes."""
Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

BOUNDS: tuple[Bound, ...] = get_args(Bound)
CUBE, VECTOR, LATENCY, HBM_DIE, HBM_CORE, L2_CORE, L2, SDMA, LINK, PEER, LAUNCH, NO_CORES = range(
    12
)

BOUND_COUNT = len(BOUNDS)

RESOURCES = 5
"""Shared resources of a die, in the order hbm, l2, sdma, link out, link in."""
LINK_IN_BIT = 16
REMOTE_BIT = 32
"""In a body's mask of loads: it loads the link in of another die."""

NONE = -1

OP = np.dtype(
    [
        ("queue", "i4"),
        ("klass", "i4"),  # its demand is rows[row_of[klass]]
        ("first_out", "i4"),  # its dependents are out[first_out:end_out]
        ("end_out", "i4"),
        ("first_read", "i4"),  # the weights it reads are read_weight[first_read:...]
        ("fills", "i4"),  # the weight that it prefetches
        ("group", "i4"),  # its collective
        ("peer", "i4"),  # the die at the other end of its link; its own without a peer
        ("release_us", "f8"),
    ],
    align=True,
)

ROW = np.dtype(
    [
        ("absent", "i4"),  # as if the op were not there
        ("aic", "i4"),
        ("aiv", "i4"),
        ("reads", "i4"),  # how many weights it reads, and where their bytes are
        ("first_bytes", "i4"),
        ("private_bound", "i4"),  # the longest of cube, vector and latency
        ("private_us", "f8"),
        ("gap_us", "f8"),
        ("head_us", "f8"),
        ("asked", "f8"),  # bytes from memory, weights included
        ("hbm_cap", "f8"),  # bytes/us, 0 = none
        ("l2_cap", "f8"),
        ("sdma", "f8"),
        ("link", "f8"),
        ("fill_bytes", "f8"),
    ],
    align=True,
)

SLOT = np.dtype(
    [
        ("op", "i4"),  # the front op of the queue
        ("position", "i4"),
        ("state", "i4"),
        ("fresh", "i4"),  # no op of the queue has been ready yet
        ("loads", "i4"),
        ("bound", "i4"),
        ("cap_bound", "i4"),
        ("seen", "i8"),  # bounds in the order met, four bits each
        ("next_in", "i4"),  # neighbours among the remote loads of the peer's link in
        ("previous_in", "i4"),
        ("entry", "i4"),  # what its prefetch fills
        ("previous_us", "f8"),  # end of the op before
        ("ready_us", "f8"),
        ("gap_us", "f8"),  # what of its launch gap showed
        ("start_us", "f8"),
        ("head_end_us", "f8"),
        ("body_start_us", "f8"),
        ("body_end_us", "f8"),
        ("resident", "f8"),
        ("hbm", "f8"),
        ("weight", "f8"),  # its largest load
        ("cap", "f8"),
        ("done", "f8"),
        ("speed", "f8"),
        ("since_us", "f8"),
    ],
    align=True,
)

# States of a queue's front op.
DEPS, READY, CORES, IN_HEAD, MEMBERS, BODY, ENDING, PEERS, ALL_DONE = range(9)

DIE = np.dtype(
    [
        ("aic", "i4"),  # free cores
        ("aiv", "i4"),
        ("asks", "i4"),  # requests in its pool's queue
        ("asking", "i4"),
        ("touched", "i4"),
        ("dirty", "i4"),  # resources whose users changed
        ("group", "i4"),  # resources of the component that is being collected
        ("first_in", "i4"),  # remote loads of its link in
        ("oldest", "i4"),  # entries in L2
        ("youngest", "i4"),
        ("first_fill", "i4"),  # entries that grow
        ("last_fill", "i4"),
        ("empty", "i4"),  # entries without bytes that do not grow
        ("held", "f8"),
    ],
    align=True,
)

ENTRY = np.dtype(
    [
        ("older", "i4"),
        ("younger", "i4"),
        ("previous_fill", "i4"),
        ("next_fill", "i4"),
        ("next_same", "i4"),  # the next entry of the same weight
        ("weight", "i4"),
        ("op", "i4"),  # the prefetch that opened it
        ("queue", "i4"),  # where that prefetch runs, while it does
        ("bytes", "f8"),
        ("arrived", "f8"),
        ("whole", "f8"),  # bytes of the whole prefetch
    ],
    align=True,
)

# What a body loads: the places [queue * RESOURCES + 0, 1, ...] in the resources' order.
LOAD = np.dtype(
    [("resource", "i4"), ("kind", "i4"), ("amount", "f8"), ("part", "f8")], align=True
)  # kind: its number on its die; part: amount / the body's largest load

# A resource while rates are shared, at [die * RESOURCES + kind].
RESOURCE = np.dtype([("left", "f8"), ("slope", "f8"), ("level", "f8")], align=True)

GROUP = np.dtype([("waiting", "i4"), ("ended", "i4")], align=True)

RECORD = np.dtype(
    [
        ("start_us", "f8"),
        ("end_us", "f8"),
        ("wait_us", "f8"),
        ("peer_wait_us", "f8"),
        ("body_us", "f8"),
        ("resident", "f8"),
        ("bound", "i4"),
    ],
    align=True,
)

MAKESPAN, PERIOD, TAKEN_US, SKIPPED, SKIPPED_AT, TOTALS = range(6)
"""Places in ``Work.totals``: end of the last op that is no prefetch, time between the ends of
the last two layers, end of the last layer, how many layers were skipped behind which one."""

# Work lists, and other counts that live beside their lengths.
WAKE, ENDS, ASKS, STARTS, DIRTY, TOUCHED = range(6)
FREE_ENTRY, NEXT_ENTRY, MARK, MARK_HIT, EVENTS, COUNTS = range(6, 12)


class GraphArrays(NamedTuple):
    """A graph; see :class:`twin.engine.compiled.flat.FlatGraph` for who makes it.

    ``die_queues[d] : die_queues[d + 1]`` are a die's queues, ``queue_start[q] :
    queue_start[q + 1]`` a queue's part of ``queue_ops``, ``group_start`` likewise of
    ``group_ops``.  ``deps`` counts the deps of each op that its queue's order does not imply.
    ``marks`` are the ops that end a layer.  ``limits`` holds aic, aiv.  ``head_scale``, where
    it is not empty, stretches the head of each op.
    """

    ops: Records
    rows: Records
    deps: Ints
    out: Ints
    read_weight: Ints
    read_bytes: Floats
    die_queues: Ints
    queue_die: Ints
    queue_start: Ints
    queue_ops: Ints
    group_start: Ints
    group_ops: Ints
    weight_reads: Ints
    marks: Ints
    head_scale: Floats
    limits: Ints


class Work(NamedTuple):
    """State of a run; sizes come from the graph, contents from the kernel."""

    slots: Records
    dies: Records
    entries: Records
    groups: Records
    records: Records
    when: Floats  # the next timer of each queue
    mask: Bytes  # resources that each queue's body loads, by bit
    taken: Bytes
    loads: Records
    resources: Records
    spent: Floats  # [queue * BOUND_COUNT + bound], us
    speed: Floats  # answers of the sharing
    bound: Ints
    pool: Ints
    open_deps: Ints
    weight_first: Ints  # the entries of each weight
    was_read: Ints
    reads_left: Ints
    wake: Ints
    ends: Ints
    asks: Ints
    starts: Ints
    starting: Ints
    dirty: Ints
    touched: Ints
    stack: Ints
    counts: npt.NDArray[np.int64]
    group_queues: Ints
    group_dies: Ints
    rising: Ints
    used: Ints
    tree: Floats  # least timer of each die, as a tournament
    totals: Floats
    rates: Floats  # of the five resources; then usable L2 bytes and pollution
