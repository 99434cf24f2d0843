"""Streams in the kernel: how ops become ready, get cores, start and end (rules 2 to 4 and 9)."""

from __future__ import annotations

from twin.engine.compiled._jit import part
from twin.engine.compiled.bodies import (
    on_grid,
    set_timer,
)
from twin.engine.compiled.layout import (
    ALL_DONE,
    ASKS,
    BOUND_COUNT,
    CORES,
    DEPS,
    IN_HEAD,
    LAUNCH,
    MAKESPAN,
    MARK,
    MARK_HIT,
    MEMBERS,
    NO_CORES,
    NONE,
    PEER,
    READY,
    STARTS,
    WAKE,
    GraphArrays,
    Ints,
    Records,
    Work,
)
from twin.engine.compiled.lists import (
    push,
)


@part
def row_at(g: GraphArrays, row_of: Ints, i: int) -> Records:
    """What op ``i`` demands in this run."""
    return g.rows[row_of[g.ops[i].klass]]


@part
def _ask_later(w: Work, die: int) -> None:
    if not w.dies[die].asking:
        w.dies[die].asking = 1
        push(w.asks, w.counts, ASKS, die)


@part
def start_head(g: GraphArrays, w: Work, row_of: Ints, q: int, now: float) -> None:
    """Start the front op of a queue: its cores are granted."""
    slot = w.slots[q]
    head_us = row_at(g, row_of, slot.op).head_us
    if len(g.head_scale) > 0:
        head_us *= g.head_scale[slot.op]
    slot.start_us = now
    slot.head_end_us = on_grid(now + head_us)
    if slot.head_end_us > now:
        slot.state = IN_HEAD
        set_timer(g, w, q, slot.head_end_us)
    else:
        slot.state = MEMBERS
        push(w.starts, w.counts, STARTS, q)


@part
def arrive(g: GraphArrays, w: Work, row_of: Ints, q: int, stops: bool, now: float) -> bool:
    """Let a ready op go on; whether it is a prefetch that does nothing."""
    slot = w.slots[q]
    fill = g.ops[slot.op].fills
    if stops and fill != NONE and w.was_read[fill]:
        return True
    slot.ready_us = now
    row = row_at(g, row_of, slot.op)
    if row.aic == 0 and row.aiv == 0:
        start_head(g, w, row_of, q, now)
        return False
    die = g.queue_die[q]
    slot.state = CORES
    base = g.die_queues[die]
    place = base + w.dies[die].asks
    while place > base:
        other = w.pool[place - 1]
        if w.slots[other].ready_us < now or (w.slots[other].ready_us == now and other < q):
            break
        w.pool[place] = other
        place -= 1
    w.pool[place] = q
    w.dies[die].asks += 1
    _ask_later(w, die)
    return False


@part
def _tell(g: GraphArrays, w: Work, q: int, end_us: float, steady: bool) -> None:
    """The front op of a queue has ended: dependents and the next op may go on."""
    slot = w.slots[q]
    op = g.ops[slot.op]
    for i in range(op.first_out, op.end_out):
        dependent = g.out[i]
        w.open_deps[dependent] -= 1
        if w.open_deps[dependent] == 0:
            other = g.ops[dependent].queue
            if w.slots[other].state == DEPS and w.slots[other].op == dependent:
                w.slots[other].state = READY
                push(w.wake, w.counts, WAKE, other)
    if op.fills == NONE:
        w.totals[MAKESPAN] = max(w.totals[MAKESPAN], end_us)
    if steady and w.counts[MARK] < len(g.marks) and slot.op == g.marks[w.counts[MARK]]:
        w.counts[MARK_HIT] = w.counts[MARK]
        w.counts[MARK] += 1
    slot.previous_us = end_us
    slot.position += 1
    slot.state = READY
    push(w.wake, w.counts, WAKE, q)


@part
def pass_over(g: GraphArrays, w: Work, q: int, now: float, steady: bool) -> None:
    """Record and pass a prefetch of a weight that was already read."""
    slot = w.slots[q]
    record = w.records[slot.op]
    record.start_us = now
    record.end_us = now
    record.wait_us = now - slot.previous_us
    record.peer_wait_us = 0.0
    record.body_us = 0.0
    record.resident = 0.0
    record.bound = LAUNCH
    _tell(g, w, q, now, steady)


@part
def wake_queues(
    g: GraphArrays, w: Work, row_of: Ints, stops: bool, now: float, steady: bool
) -> None:
    """Let queues look at their front op."""
    while w.counts[WAKE] > 0:
        w.counts[WAKE] -= 1
        q = w.wake[w.counts[WAKE]]
        slot = w.slots[q]
        if slot.position == g.queue_start[q + 1]:
            slot.state = ALL_DONE
            continue
        i = g.queue_ops[slot.position]
        slot.op = i
        row = row_at(g, row_of, i)
        if row.absent:
            slot.position += 1
            push(w.wake, w.counts, WAKE, q)
            continue
        if w.open_deps[i] > 0:
            slot.state = DEPS
            continue
        gap_us = row.gap_us
        if slot.fresh:
            # The first op of a stream has no launch gap, whichever ops are absent.
            gap_us = row_at(g, row_of, g.queue_ops[g.queue_start[q]]).gap_us
            slot.fresh = 0
        free_us = max(now, g.ops[i].release_us)
        ready_us = on_grid(max(slot.previous_us + gap_us, free_us))
        slot.gap_us = ready_us - free_us
        if ready_us > now:
            slot.state = READY
            set_timer(g, w, q, ready_us)
        elif arrive(g, w, row_of, q, stops, now):
            pass_over(g, w, q, now, steady)


@part
def _longest(w: Work, q: int) -> int:
    """What held the body of a queue for most of its time; the earlier one in ties."""
    seen = w.slots[q].seen
    if seen == 0:
        return LAUNCH
    if seen < 16:
        w.spent[q * BOUND_COUNT + seen - 1] = 0.0
        return int(seen) - 1
    best, bound = -1.0, LAUNCH
    shift = 32
    while shift >= 0:
        code = (seen >> shift) & 15
        shift -= 4
        if code > 0:
            spent = w.spent[q * BOUND_COUNT + code - 1]
            w.spent[q * BOUND_COUNT + code - 1] = 0.0
            if spent > best:
                best, bound = spent, code - 1
    return bound


@part
def end_op(g: GraphArrays, w: Work, row_of: Ints, q: int, now: float, steady: bool) -> None:
    """Record the front op of a queue, give back its cores and tell who waits for it."""
    slot = w.slots[q]
    record = w.records[slot.op]
    own_us = slot.body_end_us - slot.body_start_us
    launch_us = (slot.head_end_us - slot.start_us) + slot.gap_us
    cores_us = slot.start_us - slot.ready_us
    peer_us = (slot.body_start_us - slot.head_end_us) + (now - slot.body_end_us)
    bound = _longest(w, q)
    if cores_us > max(own_us, launch_us, peer_us):
        bound = NO_CORES
    elif peer_us > own_us and peer_us > launch_us:
        bound = PEER
    elif launch_us >= own_us:
        bound = LAUNCH
    record.start_us = slot.start_us
    record.end_us = now
    record.wait_us = slot.start_us - slot.previous_us
    record.peer_wait_us = peer_us
    record.body_us = now - slot.head_end_us
    record.resident = slot.resident
    record.bound = bound
    row = row_at(g, row_of, slot.op)
    if row.aic > 0 or row.aiv > 0:
        die = g.queue_die[q]
        w.dies[die].aic += row.aic
        w.dies[die].aiv += row.aiv
        _ask_later(w, die)
    _tell(g, w, q, now, steady)
