"""Who waits for whom when a compiled run cannot finish, in the reference engine's words."""

from __future__ import annotations

from twin.engine.compiled.flat import FlatGraph
from twin.engine.compiled.layout import ALL_DONE, BODY, ENDING, MEMBERS, PEERS, Work
from twin.engine.deadlock import who_waits
from twin.graph.step_graph import Op, StepGraph

_HEAD_DONE = (MEMBERS, BODY, ENDING, PEERS)


def deadlock_message(graph: StepGraph, flat: FlatGraph, work: Work) -> str:
    """What :func:`twin.engine.deadlock.who_waits` says of the state that ``work`` is in."""
    g, ops = flat.arrays, graph.ops
    queues: dict[tuple[int, str], list[Op]] = {}
    collectives: dict[str, list[Op]] = {}
    for op in ops:
        queues.setdefault((op.die, op.stream), []).append(op)
        if op.rendezvous is not None:
            collectives.setdefault(op.rendezvous, []).append(op)
    ended = {
        int(i)
        for start, position in zip(g.queue_start, work.slots["position"], strict=False)
        for i in g.queue_ops[start:position]
    }
    head_done = {
        int(slot["op"])
        for slot in work.slots
        if slot["state"] in _HEAD_DONE and slot["state"] != ALL_DONE
    }
    pools = {
        die.index: tuple(ops[work.slots["op"][q]] for q in work.pool[first : first + asks])
        for die, first, asks in zip(
            sorted(graph.dies, key=lambda die: die.index),
            g.die_queues,
            work.dies["asks"],
            strict=False,
        )
    }
    return who_waits(
        queues.values(),
        ended=lambda op: op.index in ended,
        head_done=lambda op: op.index in head_done,
        collectives=collectives,
        ops=ops,
        pool_queues=pools,
    )
