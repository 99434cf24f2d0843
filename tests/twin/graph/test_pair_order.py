"""Pairs of AFD where a Send holds its stream until the other end receives, as HCCL's does."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import pytest
from transports import on_transport

from hardware_models.hardware import load_hardware
from hardware_models.ops import Receive, Send
from twin.graph.build import build_step_graph
from twin.graph.step_graph import Op
from twin.models import load_model

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")


def stuck(ops: Sequence[Op]) -> list[str]:
    """Where the streams stop for good; they take ``ops`` in this order.

    A Receive begins when its Send does, whose data it has; both end together.
    """
    streams: dict[tuple[int, str], deque[Op]] = defaultdict(deque)
    by_index = {op.index: op for op in ops}
    partner: dict[int, Op] = {}
    for op in ops:
        streams[op.die, op.stream].append(op)
        if isinstance(op.spec, Receive):
            (send,) = (by_index[d] for d in op.deps if isinstance(by_index[d].spec, Send))
            partner[op.index], partner[send.index] = send, op
    done: set[int] = set()

    def begins(op: Op) -> bool:
        queue = streams[op.die, op.stream]
        data = {partner[op.index].index} if isinstance(op.spec, Receive) else set()
        return bool(queue) and queue[0] is op and set(op.deps) <= done | data

    moved = True
    while moved:
        moved = False
        for queue in streams.values():
            while queue:
                together = [queue[0]]
                if queue[0].index in partner:
                    together.append(partner[queue[0].index])
                if not all(map(begins, together)):
                    break
                for op in together:
                    streams[op.die, op.stream].popleft()
                    done.add(op.index)
                moved = True
    return [queue[0].name for queue in streams.values() if queue]


@pytest.mark.parametrize(
    ("ratio", "micro_batches"), [(1, 1), (1, 2), (1, 3), (1, 4), (3, 1), (3, 2), (3, 3)]
)
def test_no_pair_hangs_on_sends_that_wait_for_their_receivers(
    ratio: int, micro_batches: int
) -> None:
    schedule = on_transport("sdma_pairs", ratio, micro_batches)
    graph = build_step_graph(schedule, MODEL, HARDWARE, layers=4)
    assert stuck(graph.ops) == []


def test_sending_back_before_the_next_receive_would_hang() -> None:
    """The check sees it: with two micro-batches, the FFN die's first two turns exchanged."""
    graph = build_step_graph(on_transport("sdma_pairs", 1, 2), MODEL, HARDWARE, layers=2)
    link = [op for op in graph.ops if (op.die, op.stream) == (1, "link")]
    names = [op.name.removeprefix("layer.0.") for op in link[:3]]
    assert names == ["mb0.afd.recv", "mb1.afd.recv", "mb0.afd.send"]
    swap = {link[1].index: link[2], link[2].index: link[1]}
    waiting = stuck([swap.get(op.index, op) for op in graph.ops])
    assert {"layer.0.mb0.afd.send", "layer.0.mb1.afd.send"} <= set(waiting)
