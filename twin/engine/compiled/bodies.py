"""Bodies in the kernel: what they load, how far they are, how fast they go alone (rule 5)."""

from __future__ import annotations

from math import inf

import numpy as np

from twin.engine.compiled._jit import part
from twin.engine.compiled.layout import (
    BODY,
    BOUND_COUNT,
    ENDING,
    ENDS,
    HBM_CORE,
    HBM_DIE,
    L2,
    L2_CORE,
    LINK,
    LINK_IN_BIT,
    REMOTE_BIT,
    RESOURCES,
    SDMA,
    TOUCHED,
    GraphArrays,
    Records,
    Work,
)
from twin.engine.compiled.lists import push
from twin.engine.fluid import GRID_PER_US, SAME

US_PER_GRID = 1.0 / GRID_PER_US
EDGE = 1.0 + SAME


@part
def on_grid(time_us: float) -> float:
    """The grid time nearest to ``time_us`` (halves to even)."""
    return float(np.rint(time_us * GRID_PER_US) * US_PER_GRID)


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
