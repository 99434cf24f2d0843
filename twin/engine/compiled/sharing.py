"""Shared resources in the kernel: who shares with whom, and how fast that makes them (rule 6)."""

from __future__ import annotations

from math import inf

from twin.engine.compiled._jit import part
from twin.engine.compiled.bodies import EDGE, alone, resource_bound, set_speed
from twin.engine.compiled.layout import (
    DIRTY,
    LINK_IN_BIT,
    NONE,
    REMOTE_BIT,
    RESOURCES,
    GraphArrays,
    Work,
)
from twin.engine.compiled.lists import push, sort_ints


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
