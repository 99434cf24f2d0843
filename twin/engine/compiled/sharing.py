"""Bodies in the kernel: their loads, their speeds, and who shares with whom (rules 5 and 6)."""

from __future__ import annotations

from math import inf

import numpy as np

from twin.engine.compiled._jit import part
from twin.engine.compiled.layout import (
    BODY,
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
def push(w: Work, which: int, item: int) -> None:
    """Put ``item`` on a work list."""
    w.lists[which, w.counts[which]] = item
    w.counts[which] += 1


@part
def set_timer(g: GraphArrays, w: Work, q: int, time_us: float) -> None:
    """Let queue ``q`` go on at ``time_us``."""
    w.when[q] = time_us
    die = g.queue_die[q]
    if not w.dies[die].touched:
        w.dies[die].touched = 1
        push(w, TOUCHED, die)


@part
def advance(w: Work, q: int, now: float) -> None:
    """Bring the progress of a body and the time spent per bound up to ``now``."""
    slot = w.slots[q]
    passed = now - slot.since_us
    if passed > 0.0:
        slot.done += slot.speed * passed
        bound = slot.bound
        if w.spent[q, bound] == 0.0:
            slot.seen = slot.seen << 4 | (bound + 1)
        w.spent[q, bound] += passed
        slot.since_us = now


@part
def end_due(w: Work, q: int, now: float) -> None:
    """The body of queue ``q`` is done: it ends at this instant."""
    advance(w, q, now)
    slot = w.slots[q]
    slot.done = 1.0
    slot.state = ENDING
    w.when[q] = inf
    push(w, ENDS, q)


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
def make_body(g: GraphArrays, w: Work, q: int, row: Records, resident: float, now: float) -> int:
    """Fill the slot of queue ``q`` for its op's body; the mask of what it loads."""
    slot = w.slots[q]
    hbm = max(0.0, row.asked - resident)
    private_us, bound = row.private_us, row.private_bound
    from_hbm = hbm / row.hbm_cap if row.hbm_cap > 0.0 else 0.0
    from_l2 = resident / row.l2_cap if row.l2_cap > 0.0 else 0.0
    if from_hbm + from_l2 > private_us:
        private_us = from_hbm + from_l2
        bound = HBM_CORE if from_hbm >= from_l2 else L2_CORE
    base = q * RESOURCES
    w.amount[base] = hbm
    w.amount[base + 1] = hbm + resident
    w.amount[base + 2] = row.sdma
    w.amount[base + 3] = row.link
    w.amount[base + 4] = row.link
    weight = max(hbm + resident, row.sdma, row.link)
    mask = 0
    for k in range(RESOURCES):
        amount = w.amount[base + k]
        if amount > weight * SAME:
            mask |= 1 << k
            w.part[base + k] = amount / weight
    if mask & LINK_IN_BIT and g.ops[slot.op].peer != g.queue_die[q]:
        mask = mask & ~LINK_IN_BIT | REMOTE_BIT
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
    slot.state = BODY
    return mask


@part
def loads(mask: int, k: int) -> bool:
    """Whether a body with this mask loads resource ``k`` of its own die, or of its peer."""
    return mask >> k & 1 != 0 or (k == RESOURCES - 1 and mask & REMOTE_BIT != 0)


@part
def takes_no_time(g: GraphArrays, w: Work, q: int, mask: int) -> bool:
    """Whether the body, with every resource to itself, takes less than a grid step."""
    cap = w.slots[q].cap
    if 1.0 / cap * GRID_PER_US >= 1.0:
        return False
    for k in range(RESOURCES):
        if loads(mask, k) and w.amount[q * RESOURCES + k] / g.rates[k] * GRID_PER_US >= 1.0:
            return False
    return True


@part
def alone(g: GraphArrays, w: Work, q: int, mask: int) -> None:
    """Speed and bound of a body that has every resource to itself, into the answers."""
    slot = w.slots[q]
    speed, bound = slot.cap, slot.cap_bound
    for k in range(RESOURCES):
        if loads(mask, k):
            allowed = g.rates[k] / w.amount[q * RESOURCES + k]
            if allowed * EDGE < speed:
                speed, bound = allowed, resource_bound(k)
    w.speed[q] = speed
    w.bound[q] = bound


@part
def mark_dirty(w: Work, die: int, mask: int) -> None:
    """The users of these resources of ``die`` have changed."""
    if not w.dies[die].dirty:
        push(w, DIRTY, die)
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
def resource_of(g: GraphArrays, w: Work, q: int, k: int) -> int:
    """The number of resource ``k`` that queue ``q``'s body loads."""
    if k == RESOURCES - 1:
        return int(g.ops[w.slots[q].op].peer) * RESOURCES + k
    return int(g.queue_die[q]) * RESOURCES + k


@part
def share(g: GraphArrays, w: Work, members: int) -> None:
    """Progressive filling over ``group_queues[:members]``, in the order of the queues."""
    for i in range(members):
        q = w.group_queues[i]
        w.rising[i] = q
        for k in range(RESOURCES):
            if loads(w.mask[q], k):
                w.left[resource_of(g, w, q, k)] = g.rates[k]
    rising = members
    level = 0.0
    while rising > 0:
        lowest = inf
        used = 0
        for i in range(rising):
            q = w.rising[i]
            slot = w.slots[q]
            lowest = min(lowest, slot.cap * slot.weight)
            for k in range(RESOURCES):
                if loads(w.mask[q], k):
                    resource = resource_of(g, w, q, k)
                    if w.slope[resource] == 0.0:
                        w.used[used] = resource
                        used += 1
                    w.slope[resource] += w.part[q * RESOURCES + k]
        for i in range(used):
            resource = w.used[i]
            full_at = w.left[resource] / w.slope[resource]
            w.level[resource] = full_at
            w.slope[resource] = 0.0
            lowest = min(lowest, full_at)
        level = max(level, lowest)
        edge = level * EDGE
        still = 0
        for i in range(rising):
            q = w.rising[i]
            slot = w.slots[q]
            speed, bound = 0.0, NONE
            if slot.cap * slot.weight <= edge:
                speed, bound = slot.cap, slot.cap_bound
            else:
                for k in range(RESOURCES):
                    if (
                        bound == NONE
                        and loads(w.mask[q], k)
                        and w.level[resource_of(g, w, q, k)] <= edge
                    ):
                        speed, bound = level / slot.weight, resource_bound(k)
            if bound == NONE:
                w.rising[still] = q
                still += 1
                continue
            w.speed[q] = speed
            w.bound[q] = bound
            for k in range(RESOURCES):
                if loads(w.mask[q], k):
                    w.left[resource_of(g, w, q, k)] -= w.amount[q * RESOURCES + k] * speed
        rising = still


@part
def sort_ints(values: np.ndarray, count: int) -> None:
    """Sort the first ``count`` values in place (Shell's method: quick where nearly sorted)."""
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
        die = w.lists[DIRTY, i]
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
                alone(g, w, q, w.mask[q])
            elif members > 1:
                sort_ints(w.group_queues, members)
                share(g, w, members)
            for j in range(members):
                q = w.group_queues[j]
                w.taken[q] = 0
                slot = w.slots[q]
                if w.speed[q] != slot.speed or w.bound[q] != slot.bound:
                    set_speed(g, w, q, w.speed[q], w.bound[q], now)
    w.counts[DIRTY] = 0
