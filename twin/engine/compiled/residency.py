"""L2 in the kernel: entries in the order of their opening, oldest first (rule 7).

Entries of all dies lie in one array and are linked: by age on their die, by the weight they
hold, and those that still grow once more.  So nothing is ever searched.  As in the reference
engine, an entry that ends empty is forgotten when something is next read or evicted: until
then streaming traffic behind it is an entry of its own.
"""

from __future__ import annotations

from math import inf

from twin.engine.compiled._jit import part
from twin.engine.compiled.bodies import (
    set_timer,
)
from twin.engine.compiled.layout import (
    ENDING,
    ENDS,
    FREE_ENTRY,
    NEXT_ENTRY,
    NONE,
    GraphArrays,
    Records,
    Work,
)
from twin.engine.compiled.lists import (
    push,
)

# Indices behind the rates of the resources.
USABLE, POLLUTION = 5, 6


@part
def _open(w: Work, die: int, weight: int, op: int, queue: int, size: float) -> int:
    """A new youngest entry, empty."""
    index = int(w.counts[FREE_ENTRY])
    if index != NONE:
        w.counts[FREE_ENTRY] = w.entries[index].younger
    else:
        index = int(w.counts[NEXT_ENTRY])
        w.counts[NEXT_ENTRY] += 1
    entry, place = w.entries[index], w.dies[die]
    entry.weight = weight
    entry.op = op
    entry.queue = queue
    entry.bytes = 0.0
    entry.arrived = 0.0
    entry.whole = size
    entry.next_same = NONE
    entry.younger = NONE
    entry.older = place.youngest
    if place.youngest == NONE:
        place.oldest = index
    else:
        w.entries[place.youngest].younger = index
    place.youngest = index
    return index


@part
def _forget(w: Work, die: int, index: int) -> None:
    """Take an entry out of its die and its weight."""
    entry, place = w.entries[index], w.dies[die]
    if entry.older == NONE:
        place.oldest = entry.younger
    else:
        w.entries[entry.older].younger = entry.younger
    if entry.younger == NONE:
        place.youngest = entry.older
    else:
        w.entries[entry.younger].older = entry.older
    if entry.weight != NONE:
        at = w.weight_first[entry.weight]
        if at == index:
            w.weight_first[entry.weight] = entry.next_same
        else:
            while w.entries[at].next_same != index:
                at = w.entries[at].next_same
            w.entries[at].next_same = entry.next_same
    entry.younger = w.counts[FREE_ENTRY]
    w.counts[FREE_ENTRY] = index


@part
def _forget_empty(w: Work, die: int) -> float:
    """Forget entries that are empty and do not grow; the bytes of all others."""
    held = 0.0
    w.dies[die].empty = 0
    index = w.dies[die].oldest
    while index != NONE:
        entry = w.entries[index]
        younger = entry.younger
        if entry.bytes <= 0.0 and entry.queue == NONE:
            _forget(w, die, index)
        held += entry.bytes
        index = younger
    return held


@part
def _evict(g: GraphArrays, w: Work, die: int) -> None:
    place = w.dies[die]
    excess = place.held - w.rates[USABLE]
    if excess <= 0.0:
        return
    index = place.oldest
    while index != NONE and excess > 0.0:
        entry = w.entries[index]
        younger = entry.younger
        lost = min(entry.bytes, excess)
        entry.bytes -= lost
        excess -= lost
        if entry.bytes <= 0.0 and entry.queue == NONE:
            _forget(w, die, index)
        index = younger
    place.held = w.rates[USABLE]
    if place.empty > 0:
        _forget_empty(w, die)


@part
def _credit(g: GraphArrays, w: Work, die: int, now: float) -> None:
    """Let what the running prefetches have brought so far arrive."""
    place = w.dies[die]
    index = place.first_fill
    while index != NONE:
        entry = w.entries[index]
        slot = w.slots[entry.queue]
        progress = min(1.0, slot.done + slot.speed * (now - slot.since_us))
        arrived = progress * entry.whole
        entry.bytes += arrived - entry.arrived
        place.held += arrived - entry.arrived
        entry.arrived = arrived
        index = entry.next_fill
    _evict(g, w, die)


@part
def start_fill(w: Work, die: int, weight: int, op: int, queue: int, size: float) -> None:
    """Open an entry that grows with the body of ``queue``."""
    index = _open(w, die, weight, op, queue, size)
    entry, place = w.entries[index], w.dies[die]
    entry.previous_fill = place.last_fill
    entry.next_fill = NONE
    if place.last_fill == NONE:
        place.first_fill = index
    else:
        w.entries[place.last_fill].next_fill = index
    place.last_fill = index
    at = w.weight_first[weight]
    if at == NONE:
        w.weight_first[weight] = index
    else:
        while w.entries[at].next_same != NONE:
            at = w.entries[at].next_same
        w.entries[at].next_same = index
    w.slots[queue].entry = index


@part
def end_fill(g: GraphArrays, w: Work, die: int, queue: int, now: float) -> None:
    """What the body of ``queue`` has brought stays; nothing more arrives."""
    _credit(g, w, die, now)
    index = w.slots[queue].entry
    w.slots[queue].entry = NONE
    entry, place = w.entries[index], w.dies[die]
    if entry.previous_fill == NONE:
        place.first_fill = entry.next_fill
    else:
        w.entries[entry.previous_fill].next_fill = entry.next_fill
    if entry.next_fill == NONE:
        place.last_fill = entry.previous_fill
    else:
        w.entries[entry.next_fill].previous_fill = entry.previous_fill
    entry.queue = NONE
    if entry.bytes <= 0.0:
        place.empty += 1


@part
def pollute(g: GraphArrays, w: Work, die: int, amount: float, now: float) -> None:
    """Let streaming traffic enter as the youngest, anonymous bytes."""
    _credit(g, w, die, now)
    index = w.dies[die].youngest
    if index == NONE or w.entries[index].weight != NONE:
        index = _open(w, die, NONE, NONE, NONE, 0.0)
    w.entries[index].bytes += amount
    w.dies[die].held += amount
    _evict(g, w, die)


@part
def _stop_fills(g: GraphArrays, w: Work, die: int, weight: int) -> None:
    """End the running prefetches of ``weight`` at this instant."""
    index = w.dies[die].first_fill
    while index != NONE:
        entry = w.entries[index]
        slot = w.slots[entry.queue]
        if entry.weight == weight and slot.state != ENDING:
            slot.state = ENDING
            set_timer(g, w, entry.queue, inf)
            push(w.ends, w.counts, ENDS, entry.queue)
        index = entry.next_fill


@part
def read(g: GraphArrays, w: Work, q: int, row: Records, die: int, stops: bool, now: float) -> float:
    """Remove the bytes of the weights that the op reads; how many of its bytes were here."""
    _credit(g, w, die, now)
    resident = 0.0
    first = g.ops[w.slots[q].op].first_read
    for i in range(row.reads):
        weight = g.read_weight[first + i]
        taken = 0.0
        index = w.weight_first[weight]
        while index != NONE:
            taken += w.entries[index].bytes
            w.entries[index].bytes = 0.0
            index = w.entries[index].next_same
        if taken > 0.0:
            w.dies[die].held = _forget_empty(w, die)
        resident += min(taken, g.read_bytes[row.first_bytes + i])
        w.was_read[weight] = 1
        w.reads_left[weight] -= 1
        if stops:
            _stop_fills(g, w, die, weight)
    return resident
