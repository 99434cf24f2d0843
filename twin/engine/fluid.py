"""Bodies of ops as flows: what they load, how fast they may go, and how they share.

Amounts are bytes, times us and rates bytes/us (1 GB/s = 1000 bytes/us).  The rules that
this module implements are those of :mod:`twin.engine.reference`, sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hardware_models.demand import Demand
from hardware_models.hardware import Hardware
from twin.engine.timeline import Bound

GRID_PER_US = 2.0**30
"""Times lie on a grid of 2**-30 us, about one femtosecond."""

BYTES_PER_US_AT_1_GBPS = 1000.0

SAME = 1e-12
"""Relative difference below which two fill levels count as equal."""

Order = tuple[int, int, int]
"""(die, rank of the stream's name, op index): the order within one instant."""


def on_grid(time_us: float) -> float:
    """The grid time nearest to ``time_us`` (halves to even)."""
    return round(time_us * GRID_PER_US) / GRID_PER_US


class Resource:
    """One shared resource of one die, with the bodies that load it now."""

    __slots__ = ("bound", "die", "name", "rate", "users")

    def __init__(self, name: str, bound: Bound, die: int, rate_gbps: float) -> None:
        self.name = name
        self.bound: Bound = bound
        self.die = die
        self.rate = rate_gbps * BYTES_PER_US_AT_1_GBPS
        self.users: dict[Body, None] = {}


class DieResources:
    """The five shared resources of one die."""

    __slots__ = ("hbm", "l2", "link_in", "link_out", "sdma")

    def __init__(self, die: int, hardware: Hardware) -> None:
        self.hbm = Resource("hbm", "hbm_die", die, hardware["hbm_read_gbps"])
        self.l2 = Resource("l2", "l2", die, hardware["l2_gbps"])
        self.sdma = Resource("sdma", "sdma", die, hardware["sdma_gbps"])
        self.link_out = Resource("link_out", "link", die, hardware["link_gbps"])
        self.link_in = Resource("link_in", "link", die, hardware["link_gbps"])


class Body:
    """The running body of one op: ``done`` goes from 0 to 1 at ``speed`` per us.

    ``loads`` are (resource, bytes, bytes / weight), in the order hbm, l2, sdma, link_out,
    link_in; ``weight`` is the largest of the bytes.  ``cap`` is the speed that the op's own
    cores and protocol allow, ``cap_bound`` which of them.  ``alone_us`` is how long the
    body takes with every resource to itself.
    """

    __slots__ = (
        "alone_us", "bound", "cap", "cap_bound", "done", "hbm_part", "index", "loads", "order",
        "since", "speed", "spent", "version", "weight",
    )  # fmt: skip

    def __init__(
        self,
        now_us: float,
        order: Order,
        demand: Demand,
        resident: float,
        here: DieResources,
        there: DieResources,
    ) -> None:
        self.order = order
        self.index = order[2]
        asked = demand.hbm_bytes
        for read in demand.weights:
            asked += read.bytes
        self.hbm_part = max(0.0, asked - resident)
        self._set_cap(demand, resident)
        amounts = (
            (here.hbm, self.hbm_part),
            (here.l2, self.hbm_part + resident),
            (here.sdma, demand.sdma_bytes),
            (here.link_out, demand.link_bytes),
            (there.link_in, demand.link_bytes),
        )
        weight = self.weight = max(amount for _, amount in amounts)
        self.loads = tuple(
            (resource, amount, amount / weight)
            for resource, amount in amounts
            if amount > weight * SAME
        )
        private_us = 1.0 / self.cap
        self.alone_us = max([private_us, *(amount / r.rate for r, amount, _ in self.loads)])
        self.done = 0.0
        self.speed = 0.0
        self.bound: Bound = self.cap_bound
        self.since = now_us
        self.version = 0
        self.spent: dict[Bound, float] = {}

    def _set_cap(self, demand: Demand, resident: float) -> None:
        from_hbm = from_l2 = 0.0
        if demand.hbm_cap_gbps > 0.0:
            from_hbm = self.hbm_part / (demand.hbm_cap_gbps * BYTES_PER_US_AT_1_GBPS)
        if demand.l2_cap_gbps > 0.0:
            from_l2 = resident / (demand.l2_cap_gbps * BYTES_PER_US_AT_1_GBPS)
        private_us, bound = demand.cube_us, "cube"
        if demand.vector_us > private_us:
            private_us, bound = demand.vector_us, "vector"
        if demand.latency_us > private_us:
            private_us, bound = demand.latency_us, "latency"
        if from_hbm + from_l2 > private_us:
            private_us = from_hbm + from_l2
            bound = "hbm_core" if from_hbm >= from_l2 else "l2_core"
        self.cap = 1.0 / private_us if private_us > 0.0 else inf
        self.cap_bound: Bound = bound  # type: ignore[assignment]

    def advance(self, now_us: float) -> None:
        """Bring ``done`` and the time spent per bound up to ``now_us``."""
        passed = now_us - self.since
        if passed > 0.0:
            self.done += self.speed * passed
            self.spent[self.bound] = self.spent.get(self.bound, 0.0) + passed
            self.since = now_us

    def finish(self, now_us: float) -> None:
        """Set the progress to 1, whatever rounding has left of it."""
        self.advance(now_us)
        self.done = 1.0

    def progress(self, now_us: float) -> float:
        """How much of the body is done at ``now_us``, 0..1."""
        return min(1.0, self.done + self.speed * (now_us - self.since))


def alone(body: Body) -> tuple[float, Bound]:
    """Speed (1/us) and bound of a body that has every resource to itself."""
    speed, bound = body.cap, body.cap_bound
    for resource, amount, _ in body.loads:
        allowed = resource.rate / amount
        if allowed * (1.0 + SAME) < speed:
            speed, bound = allowed, resource.bound
    return speed, bound


def share(bodies: Sequence[Body]) -> list[tuple[float, Bound]]:
    """Max-min fair speeds (1/us) and bounds of all bodies that share resources.

    Progressive filling: one level in bytes/us rises for all bodies, each at speed
    level / weight, until its own cap or one of its resources holds it there.
    """
    if len(bodies) == 1:
        return [alone(bodies[0])]
    answer: list[tuple[float, Bound]] = [(0.0, "hbm_die")] * len(bodies)
    left: dict[Resource, float] = {}
    for body in bodies:
        for resource, _, _ in body.loads:
            left[resource] = resource.rate
    rising = list(range(len(bodies)))
    level = 0.0
    while rising:
        slopes: dict[Resource, float] = {}
        lowest = inf
        for i in rising:
            body = bodies[i]
            lowest = min(lowest, body.cap * body.weight)
            for resource, _, part in body.loads:
                slopes[resource] = slopes.get(resource, 0.0) + part
        for resource, slope in slopes.items():
            lowest = min(lowest, left[resource] / slope)
        level = max(level, lowest)
        edge = level * (1.0 + SAME)
        full = {r for r, slope in slopes.items() if left[r] / slope <= edge}
        still = []
        for i in rising:
            body = bodies[i]
            if body.cap * body.weight <= edge:
                answer[i] = (body.cap, body.cap_bound)
            else:
                holder = next((r for r, _, _ in body.loads if r in full), None)
                if holder is None:
                    still.append(i)
                    continue
                answer[i] = (level / body.weight, holder.bound)
            speed = answer[i][0]
            for resource, amount, _ in body.loads:
                left[resource] -= amount * speed
        rising = still
    return answer


def connected(dirty: Sequence[Resource]) -> list[list[Body]]:
    """Groups of bodies that share resources, directly or through others, with ``dirty`` ones.

    Each group is in the order (die, stream, index); what is in no group keeps its rates.
    """
    groups = []
    seen: set[Body] = set()
    for start in dirty:
        group: list[Body] = []
        front = [body for body in start.users if body not in seen]
        seen.update(front)
        while front:
            body = front.pop()
            group.append(body)
            for resource, _, _ in body.loads:
                for other in resource.users:
                    if other not in seen:
                        seen.add(other)
                        front.append(other)
        if group:
            if len(group) > 1:
                group.sort(key=lambda body: body.order)
            groups.append(group)
    return groups
