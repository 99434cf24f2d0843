"""The event loop: rules 1 to 4, 8 and 9 of :mod:`twin.engine.reference` on flat arrays."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from twin.engine.compiled._jit import SOURCE_STAMP, kernel, part
from twin.engine.compiled.layout import (
    ALL_DONE,
    ASKS,
    BODY,
    CORES,
    DEPS,
    DIRTY,
    ENDING,
    ENDS,
    FREE_ENTRY,
    HEAD,
    IN_HEAD,
    MARK,
    MARK_HIT,
    MEMBERS,
    NONE,
    PEER,
    PEERS,
    READY,
    STACK,
    STARTING,
    STARTS,
    TOUCHED,
    WAKE,
    GraphArrays,
    Ints,
    Records,
    Work,
)
from twin.engine.compiled.residency import POLLUTION, end_fill, pollute, read, start_fill
from twin.engine.compiled.sharing import (
    advance,
    alone,
    end_due,
    join,
    leave,
    make_body,
    on_grid,
    push,
    set_speed,
    set_timer,
    share_rates,
    sort_ints,
    takes_no_time,
)
from twin.engine.compiled.steady import HAVE, Skip, snapshot_or_skip

MAKESPAN = 0
"""Place in ``Work.totals``: end of the last op that is no prefetch."""


@part
def _row(g: GraphArrays, row_of: Ints, i: int) -> Records:
    return g.rows[row_of[g.ops[i].klass]]


@part
def _reset(g: GraphArrays, w: Work) -> None:
    for d in range(len(w.dies)):
        die = w.dies[d]
        die.aic = g.limits[0]
        die.aiv = g.limits[1]
        die.asks = 0
        die.asking = 0
        die.touched = 1
        die.dirty = 0
        die.group = 0
        die.first_in = NONE
        die.oldest = NONE
        die.youngest = NONE
        die.first_fill = NONE
        die.last_fill = NONE
        die.empty = 0
        die.held = 0.0
        w.lists[TOUCHED, d] = d
    for i in range(len(w.weights)):
        w.weights[i].first = NONE
        w.weights[i].was_read = 0
        w.weights[i].reads_left = g.weight_reads[i]
    for i in range(len(w.groups)):
        w.groups[i].waiting = 0
        w.groups[i].ended = 0
    for i in range(len(g.ops)):
        w.open_deps[i] = g.ops[i].deps
    w.tree[:] = inf
    w.when[:] = inf
    w.mask[:] = 0
    w.taken[:] = 0
    w.spent[:] = 0.0
    w.slope[:] = 0.0
    w.totals[:] = 0.0
    w.counts[:] = 0
    w.counts[TOUCHED] = len(w.dies)
    w.counts[FREE_ENTRY] = NONE
    w.counts[MARK_HIT] = NONE
    for q in range(len(w.slots)):
        slot = w.slots[q]
        slot.position = g.queue_start[q]
        slot.previous_us = 0.0
        slot.entry = NONE
        slot.seen = 0
        push(w, WAKE, q)


@part
def _touch(w: Work, die: int) -> None:
    if not w.dies[die].touched:
        w.dies[die].touched = 1
        push(w, TOUCHED, die)


@part
def _ask_later(w: Work, die: int) -> None:
    if not w.dies[die].asking:
        w.dies[die].asking = 1
        push(w, ASKS, die)


# Streams: rules 2 to 4.


@part
def _head(g: GraphArrays, w: Work, row_of: Ints, q: int, now: float) -> None:
    """Start the front op of a queue: its cores are granted."""
    slot = w.slots[q]
    head_us = _row(g, row_of, slot.op).head_us
    if len(g.head_scale) > 0:
        head_us *= g.head_scale[slot.op]
    slot.start_us = now
    slot.head_end_us = on_grid(now + head_us)
    if slot.head_end_us > now:
        slot.state = IN_HEAD
        set_timer(g, w, q, slot.head_end_us)
    else:
        slot.state = MEMBERS
        push(w, STARTS, q)


@part
def _arrive(g: GraphArrays, w: Work, row_of: Ints, q: int, stops: bool, now: float) -> bool:
    """Let a ready op go on; whether it is a prefetch that does nothing."""
    slot = w.slots[q]
    fill = g.ops[slot.op].fills
    if stops and fill != NONE and w.weights[fill].was_read:
        return True
    row = _row(g, row_of, slot.op)
    if row.aic == 0 and row.aiv == 0:
        _head(g, w, row_of, q, now)
        return False
    die = g.queue_die[q]
    slot.state = CORES
    slot.ready_us = now
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
                push(w, WAKE, other)
    if op.fills == NONE:
        w.totals[MAKESPAN] = max(w.totals[MAKESPAN], end_us)
    if steady and w.counts[MARK] < len(g.marks) and slot.op == g.marks[w.counts[MARK]]:
        w.counts[MARK_HIT] = w.counts[MARK]
        w.counts[MARK] += 1
    slot.previous_us = end_us
    slot.position += 1
    slot.state = READY
    push(w, WAKE, q)


@part
def _skip(g: GraphArrays, w: Work, q: int, now: float, steady: bool) -> None:
    """Record and pass a prefetch of a weight that was already read."""
    slot = w.slots[q]
    record = w.records[slot.op]
    record.start_us = now
    record.end_us = now
    record.wait_us = now - slot.previous_us
    record.peer_wait_us = 0.0
    record.body_us = 0.0
    record.resident = 0.0
    record.bound = HEAD
    _tell(g, w, q, now, steady)


@part
def _wake_queues(
    g: GraphArrays, w: Work, row_of: Ints, stops: bool, now: float, steady: bool
) -> None:
    """Let queues look at their front op."""
    while w.counts[WAKE] > 0:
        w.counts[WAKE] -= 1
        q = w.lists[WAKE, w.counts[WAKE]]
        slot = w.slots[q]
        if slot.position == g.queue_start[q + 1]:
            slot.state = ALL_DONE
            continue
        i = g.queue_ops[slot.position]
        slot.op = i
        if w.open_deps[i] > 0:
            slot.state = DEPS
            continue
        op = g.ops[i]
        ready_us = on_grid(max(slot.previous_us + op.gap_us, now, op.release_us))
        if ready_us > now:
            slot.state = READY
            set_timer(g, w, q, ready_us)
        elif _arrive(g, w, row_of, q, stops, now):
            _skip(g, w, q, now, steady)


@part
def _longest(w: Work, q: int) -> int:
    """What held the body of a queue for most of its time; the earlier one in ties."""
    seen = w.slots[q].seen
    if seen == 0:
        return HEAD
    if seen < 16:
        w.spent[q, seen - 1] = 0.0
        return int(seen) - 1
    best, bound = -1.0, HEAD
    shift = 32
    while shift >= 0:
        code = (seen >> shift) & 15
        shift -= 4
        if code > 0:
            spent = w.spent[q, code - 1]
            w.spent[q, code - 1] = 0.0
            if spent > best:
                best, bound = spent, code - 1
    return bound


@part
def _end_op(g: GraphArrays, w: Work, row_of: Ints, q: int, now: float, steady: bool) -> None:
    """Record the front op of a queue, give back its cores and tell who waits for it."""
    slot = w.slots[q]
    record = w.records[slot.op]
    own_us = slot.body_end_us - slot.body_start_us
    head_us = slot.head_end_us - slot.start_us
    peer_us = (slot.body_start_us - slot.head_end_us) + (now - slot.body_end_us)
    bound = _longest(w, q)
    if peer_us > own_us and peer_us > head_us:
        bound = PEER
    elif head_us >= own_us:
        bound = HEAD
    record.start_us = slot.start_us
    record.end_us = now
    record.wait_us = slot.start_us - slot.previous_us
    record.peer_wait_us = peer_us
    record.body_us = now - slot.head_end_us
    record.resident = slot.resident
    record.bound = bound
    row = _row(g, row_of, slot.op)
    if row.aic > 0 or row.aiv > 0:
        die = g.queue_die[q]
        w.dies[die].aic += row.aic
        w.dies[die].aiv += row.aiv
        _ask_later(w, die)
    _tell(g, w, q, now, steady)


# One instant: rule 8.


@part
def _end_bodies(g: GraphArrays, w: Work, row_of: Ints, now: float, steady: bool) -> None:
    count = w.counts[ENDS]
    w.counts[ENDS] = 0
    sort_ints(w.lists[ENDS], count)
    for i in range(count):
        q = w.lists[ENDS, i]
        slot = w.slots[q]
        slot.body_end_us = now
        advance(w, q, now)
        if w.mask[q]:
            leave(g, w, q)
        die = g.queue_die[q]
        if slot.entry != NONE:
            end_fill(g, w, die, q, now)
        elif g.ops[slot.op].fills == NONE and g.rates[POLLUTION] > 0.0 and slot.hbm > 0.0:
            pollute(g, w, die, slot.hbm * g.rates[POLLUTION], now)
        group = g.ops[slot.op].group
        if group == NONE:
            _end_op(g, w, row_of, q, now, steady)
            continue
        slot.state = PEERS
        w.groups[group].ended += 1
        first, end = g.group_start[group], g.group_start[group + 1]
        if w.groups[group].ended == end - first:
            for j in range(first, end):
                _end_op(g, w, row_of, g.ops[g.group_ops[j]].queue, now, steady)


@part
def _grant_cores(g: GraphArrays, w: Work, row_of: Ints, now: float) -> None:
    for i in range(w.counts[ASKS]):
        d = w.lists[ASKS, i]
        die = w.dies[d]
        die.asking = 0
        base = g.die_queues[d]
        served = 0
        while served < die.asks:
            q = w.pool[base + served]
            row = _row(g, row_of, w.slots[q].op)
            if row.aic > die.aic or row.aiv > die.aiv:
                break
            die.aic -= row.aic
            die.aiv -= row.aiv
            served += 1
            _head(g, w, row_of, q, now)
        if served > 0:
            die.asks -= served
            for j in range(base, base + die.asks):
                w.pool[j] = w.pool[j + served]
    w.counts[ASKS] = 0


@part
def _start_body(
    g: GraphArrays, w: Work, row_of: Ints, q: int, contention: bool, stops: bool, now: float
) -> None:
    slot = w.slots[q]
    op = g.ops[slot.op]
    row = _row(g, row_of, slot.op)
    die = g.queue_die[q]
    resident = 0.0
    if row.reads > 0:
        resident = read(g, w, q, row, die, stops, now)
    mask = make_body(g, w, q, row, resident, now)
    slot.body_start_us = now
    if op.fills != NONE:
        if stops and w.weights[op.fills].was_read:
            slot.state = ENDING
            push(w, ENDS, q)
            return
        start_fill(w, die, op.fills, slot.op, q, row.fill_bytes)
    if takes_no_time(g, w, q, mask):
        end_due(w, q, now)
    elif contention and mask:
        join(g, w, q, mask)
    else:
        alone(g, w, q, mask)
        set_speed(g, w, q, w.speed[q], w.bound[q], now)


@part
def _start_bodies(
    g: GraphArrays, w: Work, row_of: Ints, contention: bool, stops: bool, now: float
) -> None:
    count = 0
    for i in range(w.counts[STARTS]):
        q = w.lists[STARTS, i]
        group = g.ops[w.slots[q].op].group
        if group == NONE:
            w.lists[STARTING, count] = q
            count += 1
            continue
        w.groups[group].waiting += 1
        first, end = g.group_start[group], g.group_start[group + 1]
        if w.groups[group].waiting == end - first:
            for j in range(first, end):
                w.lists[STARTING, count] = g.ops[g.group_ops[j]].queue
                count += 1
    w.counts[STARTS] = 0
    sort_ints(w.lists[STARTING], count)
    for i in range(count):
        _start_body(g, w, row_of, w.lists[STARTING, i], contention, stops, now)


@part
def _settle(
    g: GraphArrays,
    w: Work,
    row_of: Ints,
    contention: bool,
    stops: bool,
    now: float,
    steady: bool,
) -> None:
    while True:
        _wake_queues(g, w, row_of, stops, now, steady)
        if w.counts[ENDS] > 0:
            _end_bodies(g, w, row_of, now, steady)
        elif w.counts[ASKS] > 0:
            _grant_cores(g, w, row_of, now)
        elif w.counts[STARTS] > 0:
            _start_bodies(g, w, row_of, contention, stops, now)
        elif w.counts[DIRTY] > 0:
            share_rates(g, w, now)
        else:
            break


# Time.


@part
def _update_tree(g: GraphArrays, w: Work) -> None:
    """Put the least timer of each touched die into the tournament."""
    leaves = len(w.tree) >> 1
    for i in range(w.counts[TOUCHED]):
        die = w.lists[TOUCHED, i]
        w.dies[die].touched = 0
        least = inf
        for q in range(g.die_queues[die], g.die_queues[die + 1]):
            least = min(least, w.when[q])
        node = leaves + die
        w.tree[node] = least
        while node > 1:
            least = min(w.tree[node], w.tree[node ^ 1])
            node >>= 1
            if w.tree[node] == least:
                break
            w.tree[node] = least
    w.counts[TOUCHED] = 0


@part
def _fire(g: GraphArrays, w: Work, row_of: Ints, stops: bool, now: float, steady: bool) -> None:
    """Let all queues go on whose timer is ``now``."""
    leaves = len(w.tree) >> 1
    w.lists[STACK, 0] = 1
    depth = 1
    while depth > 0:
        depth -= 1
        node = w.lists[STACK, depth]
        if node < leaves:
            for child in (2 * node, 2 * node + 1):
                if w.tree[child] == now:
                    w.lists[STACK, depth] = child
                    depth += 1
            continue
        die = node - leaves
        _touch(w, die)
        for q in range(g.die_queues[die], g.die_queues[die + 1]):
            if w.when[q] != now:
                continue
            w.when[q] = inf
            state = w.slots[q].state
            if state == BODY:
                end_due(w, q, now)
            elif state == IN_HEAD:
                w.slots[q].state = MEMBERS
                push(w, STARTS, q)
            elif _arrive(g, w, row_of, q, stops, now):
                _skip(g, w, q, now, steady)


def _make_run(stamp: int) -> Callable[..., int]:
    def run(
        g: GraphArrays,
        w: Work,
        skip: Skip,
        row_of: Ints,
        contention: bool,
        stops: bool,
        steady: bool,
    ) -> int:
        """Run one step; how many queues did not come to their end (0: no deadlock).

        ``row_of`` gives each class of ops its demand.  With ``steady``, layers that only
        repeat are skipped: their records are not written, all times stay right.
        """
        version = stamp
        _reset(g, w)
        skip.repeats[HAVE] = 0
        now = 0.0
        while True:
            _settle(g, w, row_of, contention, stops, now, steady)
            if steady and w.counts[MARK_HIT] != NONE:
                snapshot_or_skip(g, w, skip, row_of, now)
                w.counts[MARK_HIT] = NONE
            _update_tree(g, w)
            now = w.tree[1]
            if now == inf:
                break
            _fire(g, w, row_of, stops, now, steady)
        unfinished = 0
        for q in range(len(w.slots)):
            if w.slots[q].state != ALL_DONE:
                unfinished += 1
        return unfinished if version else 0

    return kernel(run)


run = _make_run(SOURCE_STAMP)
