"""What the reference engine notes of an op: rule 9 of :mod:`twin.engine.reference`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twin.engine.timeline import Bound, OpRecord
from twin.graph.step_graph import Op


class Marks(NamedTuple):
    """Times of an op in us, from the end of the op before it to its own."""

    previous_us: float
    free_us: float  # nothing but its gap holds it
    ready_us: float
    start_us: float
    head_end_us: float
    body_start_us: float
    body_end_us: float
    end_us: float


def record_of(op: Op, at: Marks, spent: Mapping[Bound, float], resident_bytes: float) -> OpRecord:
    """The record; ``spent`` is the time in us that each bound held the op's own body."""
    own_us = at.body_end_us - at.body_start_us
    launch_us = (at.head_end_us - at.start_us) + (at.ready_us - at.free_us)
    cores_us = at.start_us - at.ready_us
    peer_us = (at.body_start_us - at.head_end_us) + (at.end_us - at.body_end_us)
    bound: Bound
    if cores_us > max(own_us, launch_us, peer_us):
        bound = "cores"
    elif peer_us > own_us and peer_us > launch_us:
        bound = "peer"
    elif launch_us >= own_us:
        bound = "launch"
    else:
        bound = max(spent, key=spent.__getitem__)
    return OpRecord(
        index=op.index,
        start_us=at.start_us,
        end_us=at.end_us,
        wait_us=at.start_us - at.previous_us,
        peer_wait_us=peer_us,
        body_us=at.end_us - at.head_end_us,
        resident_bytes=resident_bytes,
        bound=bound,
        prefetch=op.demand.fills is not None,
    )
