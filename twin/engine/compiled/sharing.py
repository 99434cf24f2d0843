"""Bodies in the kernel: their loads, their speeds, and who shares with whom (rules 5 and 6)."""

from __future__ import annotations

from math import inf

import numpy as np

from twin.engine.compiled._jit import part
from twin.engine.compiled.layout import (
    BODY,
    BOUND_COUNT,
    DIRTY,
    ENDING,
    ENDS,
    HBM_CORE,
    HBM_DIE,
    L2,
    L2_CORE,
    LINK,
    LINK_IN_BIT,
    NONE,
    REMOTE_BIT,
    RESOURCES,
    SDMA,
    TOUCHED,
    GraphArrays,
    Records,
    Work,
)
from twin.engine.fluid import GRID_PER_US, SAME

US_PER_GRID = 1.0 / GRID_PER_US
EDGE = 1.0 + SAME


@part
def on_grid(time_us: float) -> float:
    """The grid time nearest to ``time_us`` (halves to even)."""
    return float(np.rint(time_us * GRID_PER_US) * US_PER_GRID)


@part
def copy(to: np.ndarray, values: np.ndarray) -> None:
    """Copy all values; a slice assignment would allocate."""
    for i in range(len(values)):
        to[i] = values[i]


@part
def fill(to: np.ndarray, value: float) -> None:
    """Set all places to ``value``."""
    for i in range(len(to)):
        to[i] = value


@part
def push(items: np.ndarray, counts: np.ndarray, which: int, item: int) -> None:
    """Put ``item`` on a work list, whose length is ``counts[which]``."""
    items[counts[which]] = item
    counts[which] += 1


@part
def set_timer(g: GraphArrays, w: Work, q: int, time_us: float) -> None:
    """Let queue ``q`` go on at ``time_us``."""
    w.when[q] = time_us
    die = g.queue_die[q]
    if not w.dies[die].touched:
        w.dies[die].touched = 1
        push(w.touched, w.counts, TOUCHED, die)


@part
def advance(w: Work, q: int, now: float) -> None:
    """Bring the progress of a body and the time spent per bound up to ``now``."""
    slot = w.slots[q]
    passed = now - slot.since_us
    if passed > 0.0:
        slot.done += slot.speed * passed
        bound = slot.bound
        if w.spent[q * BOUND_COUNT + bound] == 0.0:
            slot.seen = slot.seen << 4 | (bound + 1)
        w.spent[q * BOUND_COUNT + bound] += passed
        slot.since_us = now


@part
def end_due(w: Work, q: int, now: float) -> None:
    """The body of queue ``q`` is done: it ends at this instant."""
    advance(w, q, now)
    slot = w.slots[q]
    slot.done = 1.0
    slot.state = ENDING
    w.when[q] = inf
    push(w.ends, w.counts, ENDS, q)


@part
def set_speed(g: GraphArrays, w: Work, q: int, speed: float, bound: int, now: float) -> None:
    """Let the body of queue ``q`` go on at ``speed``."""
    advance(w, q, now)
    slot = w.slots[q]
    slot.bound = bound
    if speed == slot.speed:
        return
    slot.speed = speed
    end_us = on_grid(now + max(0.0, 1.0 - slot.done) / speed)
    if end_us <= now:
        end_due(w, q, now)
    else:
        set_timer(g, w, q, end_us)


@part
def resource_bound(resource: int) -> int:
    """What a body is bound by that this resource holds."""
    if resource == 0:
        return HBM_DIE
    if resource == 1:
        return L2
    if resource == 2:
        return SDMA
    return LINK


@part
def _add_load(
    w: Work, q: int, mask: int, resource: int, kind: int, amount: float, weight: float
) -> int:
    """Note a load of queue ``q``'s body if it counts; the mask with it."""
    if amount <= weight * SAME:
        return mask
    slot = w.slots[q]
    load = w.loads[q * RESOURCES + slot.loads]
    slot.loads += 1
    load.resource = resource
    load.kind = kind
    load.amount = amount
    load.part = 1.0 if amount == weight else amount / weight
    return mask | 1 << kind


@part
def make_body(g: GraphArrays, w: Work, q: int, row: Records, resident: float, now: float) -> int:
    """Fill the slot of queue ``q`` for its op's body; the mask of what it loads."""
    slot = w.slots[q]
    hbm = max(0.0, row.asked - resident)
    private_us, bound = row.private_us, row.private_bound
    from_hbm = hbm / row.hbm_cap if row.hbm_cap > 0.0 else 0.0
    from_l2 = resident / row.l2_cap if row.l2_cap > 0.0 and resident > 0.0 else 0.0
    if from_hbm + from_l2 > private_us:
        private_us = from_hbm + from_l2
        bound = HBM_CORE if from_hbm >= from_l2 else L2_CORE
    weight = max(hbm + resident, row.sdma, row.link)
    slot.hbm = hbm
    slot.resident = resident
    slot.weight = weight
    slot.cap = 1.0 / private_us if private_us > 0.0 else inf
    slot.bound = bound
    slot.cap_bound = bound
    slot.done = 0.0
    slot.speed = 0.0
    slot.since_us = now
    slot.seen = 0
    slot.loads = 0
    slot.state = BODY
    base = g.queue_die[q] * RESOURCES
    mask = _add_load(w, q, 0, base, 0, hbm, weight)
    mask = _add_load(w, q, mask, base + 1, 1, hbm + resident, weight)
    if row.sdma > 0.0:
        mask = _add_load(w, q, mask, base + 2, 2, row.sdma, weight)
    if row.link > 0.0:
        peer = g.ops[slot.op].peer
        mask = _add_load(w, q, mask, base + 3, 3, row.link, weight)
        mask = _add_load(w, q, mask, peer * RESOURCES + 4, 4, row.link, weight)
        if mask & LINK_IN_BIT and peer != g.queue_die[q]:
            mask = mask & ~LINK_IN_BIT | REMOTE_BIT
    return mask


@part
def takes_no_time(w: Work, q: int) -> bool:
    """Whether the body, with every resource to itself, takes less than a grid step."""
    slot = w.slots[q]
    if slot.cap < 0.5 * GRID_PER_US or 1.0 / slot.cap * GRID_PER_US >= 1.0:
        return False
    for i in range(q * RESOURCES, q * RESOURCES + slot.loads):
        if w.loads[i].amount / w.rates[w.loads[i].kind] * GRID_PER_US >= 1.0:
            return False
    return True


@part
def alone(w: Work, q: int) -> None:
    """Speed and bound of a body that has every resource to itself, into the answers."""
    slot = w.slots[q]
    speed, bound = slot.cap, slot.cap_bound
    for i in range(q * RESOURCES, q * RESOURCES + slot.loads):
        load = w.loads[i]
        allowed = w.rates[load.kind] / load.amount
        if allowed * EDGE < speed:
            speed, bound = allowed, resource_bound(load.kind)
    w.speed[q] = speed
    w.bound[q] = bound


@part
def mark_dirty(w: Work, die: int, mask: int) -> None:
    """The users of these resources of ``die`` have changed."""
    if not w.dies[die].dirty:
        push(w.dirty, w.counts, DIRTY, die)
    w.dies[die].dirty |= mask


@part
def join(g: GraphArrays, w: Work, q: int, mask: int) -> None:
    """Let a body load its resources from now on."""
    w.mask[q] = mask
    mark_dirty(w, g.queue_die[q], mask & (REMOTE_BIT - 1))
    if mask & REMOTE_BIT:
        slot = w.slots[q]
        peer = g.ops[slot.op].peer
        mark_dirty(w, peer, LINK_IN_BIT)
        first = w.dies[peer].first_in
        slot.previous_in = NONE
        slot.next_in = first
        if first != NONE:
            w.slots[first].previous_in = q
        w.dies[peer].first_in = q


@part
def leave(g: GraphArrays, w: Work, q: int) -> None:
    """Let a body load its resources no longer."""
    mask = w.mask[q]
    w.mask[q] = 0
    mark_dirty(w, g.queue_die[q], mask & (REMOTE_BIT - 1))
    if mask & REMOTE_BIT:
        slot = w.slots[q]
        peer = g.ops[slot.op].peer
        mark_dirty(w, peer, LINK_IN_BIT)
        if slot.previous_in == NONE:
            w.dies[peer].first_in = slot.next_in
        else:
            w.slots[slot.previous_in].next_in = slot.next_in
        if slot.next_in != NONE:
            w.slots[slot.next_in].previous_in = slot.previous_in


@part
def collect(g: GraphArrays, w: Work, seed_die: int, seed: int) -> tuple[int, int]:
    """Bodies that share resources with ``seed``, directly or through others.

    Returns:
        How many queues are in ``group_queues`` and dies in ``group_dies`` (a die may be
        there more than once); ``group`` of these dies has the resources of the component.
    """
    members = 0
    w.dies[seed_die].group = seed
    w.group_dies[0] = seed_die
    listed, place = 1, 0
    while place < listed:
        die = w.group_dies[place]
        place += 1
        found = w.dies[die].group
        before = 0
        while found != before:
            before = found
            for q in range(g.die_queues[die], g.die_queues[die + 1]):
                mask = w.mask[q]
                if mask & found and not w.taken[q]:
                    w.taken[q] = 1
                    w.group_queues[members] = q
                    members += 1
                    found |= mask & (REMOTE_BIT - 1)
                    if mask & REMOTE_BIT:
                        peer = g.ops[w.slots[q].op].peer
                        if not w.dies[peer].group & LINK_IN_BIT:
                            w.dies[peer].group |= LINK_IN_BIT
                            w.group_dies[listed] = peer
                            listed += 1
        w.dies[die].group = found
        if found & LINK_IN_BIT:
            q = w.dies[die].first_in
            while q != NONE:
                if not w.taken[q]:
                    w.taken[q] = 1
                    w.group_queues[members] = q
                    members += 1
                    sender = g.queue_die[q]
                    more = w.mask[q] & (REMOTE_BIT - 1)
                    if w.dies[sender].group | more != w.dies[sender].group:
                        w.dies[sender].group |= more
                        w.group_dies[listed] = sender
                        listed += 1
                q = w.slots[q].next_in
    return members, listed


@part
def _lowest_level(w: Work, rising: int) -> float:
    """The level at which the first of the rising bodies stops; each resource's own is kept."""
    lowest = inf
    used = 0
    for i in range(rising):
        q = w.rising[i]
        slot = w.slots[q]
        lowest = min(lowest, slot.cap * slot.weight)
        for j in range(q * RESOURCES, q * RESOURCES + slot.loads):
            load = w.loads[j]
            resource = w.resources[load.resource]
            if resource.slope == 0.0:
                w.used[used] = load.resource
                used += 1
            resource.slope += load.part
    for i in range(used):
        resource = w.resources[w.used[i]]
        resource.level = resource.left / resource.slope
        resource.slope = 0.0
        lowest = min(lowest, resource.level)
    return lowest


@part
def share(w: Work, members: int) -> None:
    """Progressive filling over ``group_queues[:members]``, in the order of the queues."""
    for i in range(members):
        q = w.group_queues[i]
        w.rising[i] = q
        for j in range(q * RESOURCES, q * RESOURCES + w.slots[q].loads):
            w.resources[w.loads[j].resource].left = w.rates[w.loads[j].kind]
    rising = members
    level = 0.0
    while rising > 0:
        level = max(level, _lowest_level(w, rising))
        edge = level * EDGE
        still = 0
        for i in range(rising):
            q = w.rising[i]
            slot = w.slots[q]
            first, end = q * RESOURCES, q * RESOURCES + slot.loads
            if slot.cap * slot.weight <= edge:
                w.speed[q] = slot.cap
                w.bound[q] = slot.cap_bound
            else:
                while first < end and w.resources[w.loads[first].resource].level > edge:
                    first += 1
                if first == end:
                    w.rising[still] = q
                    still += 1
                    continue
                w.speed[q] = level / slot.weight
                w.bound[q] = resource_bound(w.loads[first].kind)
            for j in range(q * RESOURCES, end):
                w.resources[w.loads[j].resource].left -= w.loads[j].amount * w.speed[q]
        rising = still


@part
def sort_ints(values: np.ndarray, count: int) -> None:
    """Sort the first ``count`` values in place (Shell's method: quick where nearly sorted)."""
    if count < 2:
        return
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value = values[i]
            j = i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@part
def share_rates(g: GraphArrays, w: Work, now: float) -> None:
    """Give new speeds to all bodies that share resources with what changed."""
    for i in range(w.counts[DIRTY]):
        die = w.dirty[i]
        while w.dies[die].dirty:
            dirty = w.dies[die].dirty
            seed = dirty & -dirty
            members, listed = collect(g, w, die, seed)
            for j in range(listed):
                other = w.group_dies[j]
                w.dies[other].dirty &= ~w.dies[other].group
                w.dies[other].group = 0
            if members == 1:
                q = w.group_queues[0]
                alone(w, q)
            elif members > 1:
                sort_ints(w.group_queues, members)
                share(w, members)
            for j in range(members):
                q = w.group_queues[j]
                w.taken[q] = 0
                slot = w.slots[q]
                if w.speed[q] != slot.speed or w.bound[q] != slot.bound:
                    set_speed(g, w, q, w.speed[q], w.bound[q], now)
    w.counts[DIRTY] = 0
