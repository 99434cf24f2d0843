"""The longest chain of a step in the kernel: what no sharing and no core can shorten."""

from __future__ import annotations

from collections.abc import Callable

from twin.engine.compiled._jit import SOURCE_STAMP, kernel
from twin.engine.compiled.layout import NONE, Floats, GraphArrays


def _make_chain(stamp: int) -> Callable[..., int]:
    def chain(
        g: GraphArrays, gap_us: Floats, busy_us: Floats, free_us: Floats, queue_us: Floats
    ) -> int:
        """Earliest ends when each op takes no longer than its class takes at best.

        Prefetches count as if they were not there.  Ops come after those they wait for.
        ``gap_us`` and ``busy_us`` are of each class; ``free_us`` (of each op) and
        ``queue_us`` (of each queue; -1: nothing ran yet) are memory: afterwards the largest of
        ``queue_us`` is the end of the step.

        Returns:
            The stamp of the sources.
        """
        for q in range(len(queue_us)):
            queue_us[q] = -1.0
        for i in range(len(free_us)):
            free_us[i] = 0.0
        for i in range(len(g.ops)):
            op = g.ops[i]
            if op.fills != NONE:
                continue
            start_us = max(free_us[i], op.release_us)
            before_us = queue_us[op.queue]
            if before_us >= 0.0:
                start_us = max(start_us, before_us + gap_us[op.klass])
            end_us = start_us + busy_us[op.klass]
            queue_us[op.queue] = end_us
            for k in range(op.first_out, op.end_out):
                free_us[g.out[k]] = max(free_us[g.out[k]], end_us)
        return stamp

    return kernel(chain)


chain = _make_chain(SOURCE_STAMP)
