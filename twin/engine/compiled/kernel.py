"""The event loop: rules 1 to 4, 8 and 9 of :mod:`twin.engine.reference` on flat arrays."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from twin.engine.compiled._jit import SOURCE_STAMP, kernel, part
from twin.engine.compiled.bodies import (
    advance,
    alone,
    end_due,
    make_body,
    set_speed,
    takes_no_time,
)
from twin.engine.compiled.layout import (
    ALL_DONE,
    ASKS,
    BODY,
    DIRTY,
    ENDING,
    ENDS,
    EVENTS,
    FREE_ENTRY,
    IN_HEAD,
    MAKESPAN,
    MARK_HIT,
    MEMBERS,
    NONE,
    PEERS,
    PERIOD,
    STARTS,
    TOUCHED,
    WAKE,
    Floats,
    GraphArrays,
    Ints,
    Work,
)
from twin.engine.compiled.lists import (
    copy,
    fill,
    push,
    sort_ints,
)
from twin.engine.compiled.residency import POLLUTION, end_fill, pollute, read, start_fill
from twin.engine.compiled.sharing import (
    join,
    leave,
    share_rates,
)
from twin.engine.compiled.steady import HAVE, Skip, snapshot_or_skip
from twin.engine.compiled.streams import arrive, end_op, pass_over, row_at, start_head, wake_queues


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
        w.touched[d] = d
    fill(w.weight_first, NONE)
    fill(w.was_read, 0)
    copy(w.reads_left, g.weight_reads)
    copy(w.open_deps, g.deps)
    for i in range(len(w.groups)):
        w.groups[i].waiting = 0
        w.groups[i].ended = 0
    fill(w.tree, inf)
    fill(w.when, inf)
    fill(w.mask, 0)
    fill(w.taken, 0)
    fill(w.spent, 0.0)
    for i in range(len(w.resources)):
        w.resources[i].slope = 0.0
    fill(w.totals, 0.0)
    fill(w.counts, 0)
    w.counts[TOUCHED] = len(w.dies)
    w.counts[FREE_ENTRY] = NONE
    w.counts[MARK_HIT] = NONE
    for q in range(len(w.slots)):
        slot = w.slots[q]
        slot.position = g.queue_start[q]
        slot.previous_us = 0.0
        slot.fresh = 1
        slot.entry = NONE
        slot.seen = 0
        push(w.wake, w.counts, WAKE, q)


@part
def _touch(w: Work, die: int) -> None:
    if not w.dies[die].touched:
        w.dies[die].touched = 1
        push(w.touched, w.counts, TOUCHED, die)


# One instant: rule 8.


@part
def _end_bodies(g: GraphArrays, w: Work, row_of: Ints, now: float, steady: bool) -> None:
    count = w.counts[ENDS]
    w.counts[ENDS] = 0
    sort_ints(w.ends, count)
    for i in range(count):
        q = w.ends[i]
        slot = w.slots[q]
        slot.body_end_us = now
        advance(w, q, now)
        if w.mask[q]:
            leave(g, w, q)
        die = g.queue_die[q]
        if slot.entry != NONE:
            end_fill(g, w, die, q, now)
        elif g.ops[slot.op].fills == NONE and w.rates[POLLUTION] > 0.0 and slot.hbm > 0.0:
            pollute(g, w, die, slot.hbm * w.rates[POLLUTION], now)
        group = g.ops[slot.op].group
        if group == NONE:
            end_op(g, w, row_of, q, now, steady)
            continue
        slot.state = PEERS
        w.groups[group].ended += 1
        first, end = g.group_start[group], g.group_start[group + 1]
        if w.groups[group].ended == end - first:
            for j in range(first, end):
                end_op(g, w, row_of, g.ops[g.group_ops[j]].queue, now, steady)


@part
def _grant_cores(g: GraphArrays, w: Work, row_of: Ints, now: float) -> None:
    for i in range(w.counts[ASKS]):
        d = w.asks[i]
        die = w.dies[d]
        die.asking = 0
        base = g.die_queues[d]
        served = 0
        while served < die.asks:
            q = w.pool[base + served]
            row = row_at(g, row_of, w.slots[q].op)
            if row.aic > die.aic or row.aiv > die.aiv:
                break
            die.aic -= row.aic
            die.aiv -= row.aiv
            served += 1
            start_head(g, w, row_of, q, now)
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
    row = row_at(g, row_of, slot.op)
    die = g.queue_die[q]
    resident = 0.0
    if row.reads > 0:
        resident = read(g, w, q, row, die, stops, now)
    mask = make_body(g, w, q, row, resident, now)
    slot.body_start_us = now
    if op.fills != NONE:
        if stops and w.was_read[op.fills]:
            slot.state = ENDING
            push(w.ends, w.counts, ENDS, q)
            return
        start_fill(w, die, op.fills, slot.op, q, row.fill_bytes)
    if takes_no_time(w, q):
        end_due(w, q, now)
    elif contention and mask:
        join(g, w, q, mask)
    else:
        alone(w, q)
        set_speed(g, w, q, w.speed[q], w.bound[q], now)


@part
def _start_bodies(
    g: GraphArrays, w: Work, row_of: Ints, contention: bool, stops: bool, now: float
) -> None:
    count = 0
    for i in range(w.counts[STARTS]):
        q = w.starts[i]
        group = g.ops[w.slots[q].op].group
        if group == NONE:
            w.starting[count] = q
            count += 1
            continue
        w.groups[group].waiting += 1
        first, end = g.group_start[group], g.group_start[group + 1]
        if w.groups[group].waiting == end - first:
            for j in range(first, end):
                w.starting[count] = g.ops[g.group_ops[j]].queue
                count += 1
    w.counts[STARTS] = 0
    sort_ints(w.starting, count)
    for i in range(count):
        _start_body(g, w, row_of, w.starting[i], contention, stops, now)


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
        wake_queues(g, w, row_of, stops, now, steady)
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
        die = w.touched[i]
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
    w.stack[0] = 1
    depth = 1
    while depth > 0:
        depth -= 1
        node = w.stack[depth]
        if node < leaves:
            for child in (2 * node, 2 * node + 1):
                if w.tree[child] == now:
                    w.stack[depth] = child
                    depth += 1
            continue
        die = node - leaves
        _touch(w, die)
        for q in range(g.die_queues[die], g.die_queues[die + 1]):
            if w.when[q] != now:
                continue
            w.when[q] = inf
            w.counts[EVENTS] += 1
            state = w.slots[q].state
            if state == BODY:
                end_due(w, q, now)
            elif state == IN_HEAD:
                w.slots[q].state = MEMBERS
                push(w.starts, w.counts, STARTS, q)
            elif arrive(g, w, row_of, q, stops, now):
                pass_over(g, w, q, now, steady)


@part
def _run_once(
    g: GraphArrays,
    w: Work,
    skip: Skip,
    row_of: Ints,
    contention: bool,
    stops: bool,
    steady: bool,
) -> int:
    """One step; how many queues did not come to their end."""
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
    return unfinished


def _make_run(stamp: int) -> Callable[..., int]:
    def run(
        g: GraphArrays,
        w: Work,
        skip: Skip,
        rows_of: Ints,
        rates: Floats,
        rates_of: Ints,
        answers: Floats,
        contention: bool,
        stops: bool,
        steady: bool,
    ) -> int:
        """Run a step with different numbers, one run for each line of ``rows_of``.

        A line of ``rows_of`` gives each class of ops its row, ``rates_of`` the line of
        ``rates`` that holds.  A line of ``answers`` gets the makespan, the time between the
        last two layers' ends, and how many queues did not come to their end (0: no deadlock).
        With ``steady``, layers that only repeat are skipped: their records are not written,
        all times stay right.

        Returns:
            The stamp of the sources.
        """
        for i in range(len(rows_of)):
            copy(w.rates, rates[rates_of[i]])
            unfinished = _run_once(g, w, skip, rows_of[i], contention, stops, steady)
            answers[i][0] = w.totals[MAKESPAN]
            answers[i][1] = w.totals[PERIOD]
            answers[i][2] = unfinished
        return stamp

    return kernel(run)


run = _make_run(SOURCE_STAMP)
