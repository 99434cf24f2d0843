"""Skipping layers that only repeat.

At the end of each layer the state of the run is compared with the state one layer before,
both as seen from that instant.  Where they are the same, so is everything that follows, as
long as the graph repeats (:mod:`twin.engine.compiled.period`): the run goes on from the
same state that many layers later.  Nothing is assumed; where no two states are the same,
the run is an ordinary one.

Of L2, only entries from the oldest one that will still be read, or still grows, are
compared: what an entry loses depends on the entries younger than it, never on older ones.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from twin.engine.compiled._jit import part
from twin.engine.compiled.layout import (
    ALL_DONE,
    BODY,
    CORES,
    DEPS,
    MARK,
    MARK_HIT,
    NONE,
    PERIOD,
    SKIPPED,
    SKIPPED_AT,
    TAKEN_US,
    TOUCHED,
    Floats,
    GraphArrays,
    Ints,
    Records,
    Work,
)
from twin.engine.compiled.lists import (
    push,
)

SAME_US = 2.0**-28
"""Four grid steps: times this close count as equal."""
SAME_SHARE = 1e-12

# Places in ``Skip.repeats``.
STEP, FIRST, END, REACH, HAVE = range(5)


class Skip(NamedTuple):
    """How a graph repeats, and the state at the end of the layer before.

    ``repeats`` holds: ops ``i`` and ``i + STEP`` are alike for FIRST <= i < END; the largest
    distance between ops that know each other; whether a state is kept.
    """

    repeats: Ints
    slots: Records
    when: Floats
    mask: Ints
    asks: Ints
    pool: Ints
    entry_count: Ints
    entry_op: Ints
    entry_bytes: Floats


@part
def _close(one_us: float, other_us: float) -> bool:
    return one_us == other_us or abs(one_us - other_us) <= SAME_US


@part
def _near(one: float, other: float, slack: float) -> bool:
    return abs(one - other) <= SAME_SHARE * max(abs(one), abs(other)) + slack


@part
def _is_live(w: Work, index: int) -> bool:
    """Whether an entry grows or will be read."""
    entry = w.entries[index]
    if entry.queue != NONE:
        return True
    return bool(entry.weight != NONE and w.reads_left[entry.weight] > 0)


@part
def _oldest_live(w: Work, die: int) -> int:
    index = int(w.dies[die].oldest)
    while index != NONE and not _is_live(w, index):
        index = int(w.entries[index].younger)
    return index


@part
def _same_queue(
    g: GraphArrays, w: Work, skip: Skip, row_of: Ints, q: int, now: float, then: float
) -> bool:
    slot, old = w.slots[q], skip.slots[q]
    if slot.state != old.state or slot.fresh != old.fresh:
        return False
    if slot.state == ALL_DONE:
        return bool(slot.position == old.position)
    if slot.op != old.op + skip.repeats[STEP] or old.op < skip.repeats[FIRST]:
        return False
    if not _close(w.when[q] - now, skip.when[q] - then):
        return False
    if slot.state == DEPS:
        gap_us = g.rows[row_of[g.ops[slot.op].klass]].gap_us
        return _close(
            max(slot.previous_us + gap_us - now, 0.0), max(old.previous_us + gap_us - then, 0.0)
        )
    if slot.state == CORES:
        return _close(slot.ready_us - now, old.ready_us - then)
    if slot.state != BODY:
        return True
    slack = SAME_US * slot.speed
    return (
        w.mask[q] == skip.mask[q]
        and slot.bound == old.bound
        and _near(slot.speed, old.speed, 0.0)
        and _near(slot.hbm, old.hbm, SAME_US * w.rates[0])
        and _near(slot.resident, old.resident, SAME_US * w.rates[0])
        and _near(
            slot.done + slot.speed * (now - slot.since_us),
            old.done + old.speed * (then - old.since_us),
            slack,
        )
    )


@part
def _same_die(g: GraphArrays, w: Work, skip: Skip, die: int) -> bool:
    """Whether the pool's queue and the L2 of a die are as they were."""
    if w.dies[die].asks != skip.asks[die]:
        return False
    base = g.die_queues[die]
    for i in range(base, base + skip.asks[die]):
        if w.pool[i] != skip.pool[i]:
            return False
    at = 0 if die == 0 else skip.entry_count[die - 1]
    index = _oldest_live(w, die)
    while index != NONE:
        if at == skip.entry_count[die]:
            return False
        entry = w.entries[index]
        op, old = entry.op if _is_live(w, index) else NONE, skip.entry_op[at]
        # What came before the layers and is read behind them stays what it is.
        if op != (old + skip.repeats[STEP] if old >= skip.repeats[FIRST] else old):
            return False
        if not _near(entry.bytes, skip.entry_bytes[at], SAME_US * w.rates[2]):
            return False
        at += 1
        index = entry.younger
    return bool(at == skip.entry_count[die])


@part
def _is_same(g: GraphArrays, w: Work, skip: Skip, row_of: Ints, now: float) -> bool:
    for q in range(len(w.slots)):
        if not _same_queue(g, w, skip, row_of, q, now, w.totals[TAKEN_US]):
            return False
    for die in range(len(w.dies)):
        if not _same_die(g, w, skip, die):
            return False
    return True


@part
def _keep(g: GraphArrays, w: Work, skip: Skip, now: float) -> None:
    """Keep the state of this instant."""
    skip.repeats[HAVE] = 1
    w.totals[TAKEN_US] = now
    for q in range(len(w.slots)):
        skip.slots[q] = w.slots[q]
        skip.when[q] = w.when[q]
        skip.mask[q] = w.mask[q]
        skip.pool[q] = w.pool[q]
    at = 0
    for die in range(len(w.dies)):
        skip.asks[die] = w.dies[die].asks
        index = _oldest_live(w, die)
        while index != NONE:
            skip.entry_op[at] = w.entries[index].op if _is_live(w, index) else NONE
            skip.entry_bytes[at] = w.entries[index].bytes
            at += 1
            index = w.entries[index].younger
        skip.entry_count[die] = at


@part
def _move_weight(w: Work, old: int, new: int) -> None:
    w.was_read[new] = w.was_read[old]
    w.reads_left[new] = w.reads_left[old]


@part
def _move_entries(g: GraphArrays, w: Work, skip: Skip, die: int, by: int) -> None:
    """Let what lies in L2 be the weights ``by`` ops later; what is dead becomes anonymous."""
    index = w.dies[die].oldest
    while index != NONE:
        entry = w.entries[index]
        if entry.weight != NONE:
            w.weight_first[entry.weight] = NONE
        if not _is_live(w, index):
            entry.weight = NONE
            entry.op = NONE
        elif entry.op >= skip.repeats[FIRST]:
            entry.op += by
            entry.weight = g.ops[entry.op].fills
        entry.next_same = NONE
        index = entry.younger
    index = w.dies[die].oldest
    while index != NONE:
        weight = w.entries[index].weight
        if weight != NONE:
            at = w.weight_first[weight]
            if at == NONE:
                w.weight_first[weight] = index
            else:
                while w.entries[at].next_same != NONE:
                    at = w.entries[at].next_same
                w.entries[at].next_same = index
        index = w.entries[index].younger


@part
def _move(
    g: GraphArrays, w: Work, skip: Skip, row_of: Ints, low: int, high: int, layers: int, now: float
) -> None:
    """Go on ``layers`` later; ops ``low`` to ``high`` are those with a state of their own."""
    by = layers * skip.repeats[STEP]
    late_us = layers * (now - w.totals[TAKEN_US])
    for i in range(low, high + 1):
        op, later = g.ops[i], g.ops[i + by]
        w.open_deps[i + by] = w.open_deps[i]
        if op.group != NONE:
            w.groups[later.group].waiting = w.groups[op.group].waiting
            w.groups[later.group].ended = w.groups[op.group].ended
        if op.fills != NONE:
            _move_weight(w, op.fills, later.fills)
        for k in range(g.rows[row_of[op.klass]].reads):
            _move_weight(w, g.read_weight[op.first_read + k], g.read_weight[later.first_read + k])
    for die in range(len(w.dies)):
        _move_entries(g, w, skip, die, by)
        if not w.dies[die].touched:
            w.dies[die].touched = 1
            push(w.touched, w.counts, TOUCHED, die)
    for q in range(len(w.slots)):
        slot = w.slots[q]
        if slot.state == ALL_DONE:
            continue
        slot.op += by
        slot.position += layers * (slot.position - skip.slots[q].position)
        slot.previous_us += late_us
        slot.ready_us += late_us
        slot.start_us += late_us
        slot.head_end_us += late_us
        slot.body_start_us += late_us
        slot.body_end_us += late_us
        slot.since_us += late_us
        if w.when[q] < inf:
            w.when[q] += late_us


@part
def _with_state(g: GraphArrays, w: Work, skip: Skip) -> tuple[int, int]:
    """The first and the last op that the run has got to know, but not ended."""
    low, high = len(g.ops), 0
    for q in range(len(w.slots)):
        if w.slots[q].state != ALL_DONE:
            low = min(low, w.slots[q].op)
            high = max(high, w.slots[q].op)
    for i in range(high + 1, min(high + skip.repeats[REACH] + 1, len(g.ops))):
        fills = g.ops[i].fills
        if w.open_deps[i] != g.deps[i] or (fills != NONE and w.was_read[fills]):
            high = i
    return low, high


@part
def snapshot_or_skip(g: GraphArrays, w: Work, skip: Skip, row_of: Ints, now: float) -> None:
    """At the end of a layer: skip the layers that will repeat this one, if any will."""
    had = skip.repeats[HAVE]
    if had:
        w.totals[PERIOD] = now - w.totals[TAKEN_US]
    if skip.repeats[STEP] == 0:
        skip.repeats[HAVE] = 1
        w.totals[TAKEN_US] = now
        return
    if not had or not _is_same(g, w, skip, row_of, now):
        _keep(g, w, skip, now)
        return
    w.counts[MARK] = len(g.marks)
    low, high = _with_state(g, w, skip)
    layers = (skip.repeats[END] - 1 - high) // skip.repeats[STEP] + 1
    if layers * skip.repeats[STEP] > high - low + skip.repeats[REACH]:
        w.totals[SKIPPED] = layers
        w.totals[SKIPPED_AT] = w.counts[MARK_HIT]
        _move(g, w, skip, row_of, low, high, layers, now)
