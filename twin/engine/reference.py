"""The reference engine, on simpy, and the rules that every engine follows.

**1. Time.** Times are us from the start of the step, on a grid of 2**-30 us: every computed
time is rounded to the nearest grid time, halves to even.  Times that are equal in exact
arithmetic are thereby equal, in whatever order their terms were added.

**2. Streams.** Ops of one (die, stream) run in the order of the graph, one at a time.  An
op is ready at the latest of: the end of the previous op of its stream (0 for the first)
plus ``gap_us``; the ends of its deps; ``release_us``.

**3. Cores.** A ready op asks its die's pool for all its cores.  The pool serves requests
in the order (ready time, rank of the stream's name, op index) and strictly: a front that
does not fit blocks those behind it.  An op that asks for no cores never queues.  The op
starts when its cores are granted and holds them to its end.

**4. Head and collectives.** After its start an op spends ``head_us``, then its body starts;
in a collective (all ops with one ``rendezvous`` key) when the heads of all members are done.
A member ends when the bodies of all members have ended; any other op ends with its body.

**5. Body.** With ``resident`` the bytes of the op's weights that lie in L2 when its body
starts (rule 7), from_hbm = hbm_bytes + bytes of the weights - resident, and a rate cap of
0 meaning none:

- its own cap is 1 / max(cube_us, vector_us, latency_us, from_hbm / hbm_cap +
  resident / l2_cap): what comes from HBM and from L2 goes one after the other through the
  same pipe of the cores;
- it loads the die's HBM with from_hbm, its L2 with from_hbm + resident, its SDMA with
  sdma_bytes, and its link out and the peer's (without a peer its own) link in with
  link_bytes.  A load below 1e-12 of the body's largest load does not count.

A body that takes less than one grid step with every resource to itself ends at once.

**6. Sharing.** The weight of a body is its largest load.  A level in bytes/us rises from 0
for all bodies that have loads; each goes at level / weight until the level reaches
cap x weight (the body then goes at its cap) or a resource that it loads is used up (it then
goes at the level of that instant, divided by its weight).  A resource is used up at the
level where what bodies at rest take plus what rising ones take is its rate.  Levels within
1e-12 of each other count as equal: own caps hold before resources, resources in the order
hbm, l2, sdma, link out, link in.  Without contention a body goes at the least of its cap
and of rate / load of its resources.  Speeds change only when a body starts or ends, and only
of bodies that share resources with it, directly or through others.  A body whose speed
changes at t has its end set to t + (1 - done) / speed; otherwise its end stays.

**7. L2.** A prefetch (an op with ``fills``) opens an entry on its die when its body starts;
progress x fills.bytes have arrived in it.  When other bodies end, from_hbm x l2_pollution
bytes enter as anonymous streaming traffic, a new youngest entry.  Whenever the total exceeds
``l2_usable_bytes`` the entries opened first lose bytes first, partially if need be.  When
the body of an op that reads a weight starts, all bytes of that weight leave L2, and up to
the bytes that it reads of them count as resident.  A prefetch that still runs then

- ``continues``: what is still to come arrives in its entry; later readers may find it;
- ``stops``: its body ends at that instant.  A prefetch of a weight that was already read on
  its die does nothing: it ends when it is ready if the weight was read before, and
  otherwise when its body would start.

**8. One instant.** What is due at an instant is worked off in this order, from the top again
after every step, until nothing is due: (a) bodies end, in the order (die, rank of the
stream's name, op index); their ops end, and next and dependent ops become ready; (b) pools
queue the requests and grant; (c) bodies start, in the same order, and those that end at
once are due; (d) rates are shared anew.  A step works off all that is due in its class.

**9. Record.** The bound of an op is what held its own body for most of its time (ties in
favour of the earlier one in time).  It is ``cores`` when the op waited for its cores longer
than its body, its launch and its members took; else ``peer`` when it waited for members
longer than its body and its launch took; else ``launch`` when the launch took at least as
long as the body.  The launch is the head and what of the gap came after the ends of the deps
and ``release_us``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy
from simpy.events import EventPriority

from hardware_models.errors import DeadlockError
from twin.engine.checks import check_graph
from twin.engine.cores import CorePool
from twin.engine.deadlock import who_waits
from twin.engine.flows import Flows
from twin.engine.fluid import GRID_PER_US, Body, DieResources, Order, on_grid
from twin.engine.observer import Observer
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.engine.record import Marks, record_of
from twin.engine.residency import Residency
from twin.engine.timeline import OpRecord, Timeline
from twin.graph.step_graph import Op, StepGraph

Process = Generator[simpy.Event, Any, None]


def simulate(
    graph: StepGraph, options: EngineOptions = DEFAULT_OPTIONS, observer: Observer | None = None
) -> Timeline:
    """Run one step and return when each op ran and what bound it.

    Raises:
        InputError: an amount or a reference in the graph is impossible (see
            :func:`twin.engine.checks.check_graph`).
        DeadlockError: ops wait for each other, or for cores that the die does not have.
    """
    check_graph(graph)
    return _Run(graph, options, observer).run()


class _Settle(simpy.Event):
    """An event of this instant, behind all others of it, like simpy's own Timeout triggered."""

    PRIORITY = EventPriority(2)

    def __init__(self, env: simpy.Environment, callback: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.callbacks = [callback]
        env.schedule(self, priority=self.PRIORITY)


class _Collective:
    """State of one rendezvous: its members, and how many got how far."""

    __slots__ = ("ended", "members", "waiting")

    def __init__(self) -> None:
        self.members: list[Op] = []
        self.waiting: list[Op] = []
        self.ended = 0


class _Run:
    """One simulation.  Stream processes do the waiting; the ``_settle`` step does rule 8."""

    def __init__(self, graph: StepGraph, options: EngineOptions, observer: Observer | None) -> None:
        hardware = graph.hardware
        self._graph = graph
        self._observer = observer
        self._stops = options.unfinished_prefetch == "stops"
        self._pollution = hardware["l2_pollution"]
        self._env = simpy.Environment()
        self._flows = Flows(self._env, self._due, observer, contention=options.contention)
        dies = [die.index for die in graph.dies]
        self._resources = {die: DieResources(die, hardware) for die in dies}
        self._l2 = {die: Residency(hardware["l2_usable_bytes"]) for die in dies}
        aic, aiv = hardware.count("aic_count"), hardware.count("aiv_count")
        self._pools = {die: CorePool(aic, aiv) for die in dies}

        ops = graph.ops
        ranks = {name: rank for rank, name in enumerate(sorted({op.stream for op in ops}))}
        self._orders: list[Order] = [(op.die, ranks[op.stream], op.index) for op in ops]
        self._open_deps = [len(set(op.deps)) for op in ops]
        self._dependents: list[list[int]] = [[] for _ in ops]
        self._collectives: dict[str, _Collective] = {}
        for op in ops:
            for dep in set(op.deps):
                self._dependents[dep].append(op.index)
            if op.rendezvous is not None:
                self._collectives.setdefault(op.rendezvous, _Collective()).members.append(op)

        self._deps_met: dict[int, simpy.Event] = {}
        self._granted: dict[int, simpy.Event] = {}
        self._finished: dict[int, simpy.Event] = {}
        self._bodies: dict[int, Body] = {}
        self._body_us: dict[int, tuple[float, float]] = {}
        self._resident: dict[int, float] = {}
        self._records: list[OpRecord | None] = [None] * len(ops)

        # What is due at this instant, by the steps of rule 8.
        self._settling = False
        self._ending: list[Body] = []
        self._asking: set[int] = set()
        self._starting: list[Op] = []

    def run(self) -> Timeline:
        """Simulate to the end."""
        queues: dict[tuple[int, str], list[Op]] = {}
        for op in self._graph.ops:
            queues.setdefault((op.die, op.stream), []).append(op)
        for queue in queues.values():
            self._env.process(self._stream(queue))
        self._env.run()
        records = [record for record in self._records if record is not None]
        if len(records) < len(self._records):
            raise DeadlockError(
                who_waits(
                    queues.values(),
                    ended=lambda op: self._records[op.index] is not None,
                    head_done=lambda op: op.index in self._finished,
                    collectives={key: c.members for key, c in self._collectives.items()},
                    ops=self._graph.ops,
                    pool_queues={die: pool.waiting() for die, pool in self._pools.items()},
                )
            )
        return Timeline(tuple(records))

    # Streams: rules 2 to 4.

    def _stream(self, queue: list[Op]) -> Process:
        env = self._env
        previous_us = 0.0
        for op in queue:
            index = op.index
            if self._open_deps[index]:
                self._deps_met[index] = env.event()
                yield self._deps_met[index]
            # Now is the end of the previous op or of the last dep, whichever is later.
            free_us = max(env.now, op.release_us)
            ready_us = on_grid(max(previous_us + op.gap_us, free_us))
            if ready_us > env.now:
                yield env.timeout(ready_us - env.now)
            fills = op.demand.fills
            if self._stops and fills is not None and self._l2[op.die].was_read(fills.weight):
                now = env.now
                wait_us = now - previous_us
                record = OpRecord(index, now, now, wait_us, 0.0, 0.0, 0.0, "launch", prefetch=True)
            else:
                if op.cores.aic or op.cores.aiv:
                    yield self._ask(op, ready_us)
                start_us = env.now
                head_end_us = on_grid(start_us + op.demand.head_us)
                if head_end_us > start_us:
                    yield env.timeout(head_end_us - start_us)
                yield self._begin(op)
                marks = Marks(
                    previous_us,
                    free_us,
                    ready_us,
                    start_us,
                    head_end_us,
                    *self._body_us.pop(index),
                    env.now,
                )
                body = self._bodies.pop(index)
                record = record_of(op, marks, body.spent, self._resident.pop(index))
                if op.cores.aic or op.cores.aiv:
                    self._release(op)
            previous_us = record.end_us
            self._records[index] = record
            self._tell_dependents(index)

    def _ask(self, op: Op, ready_us: float) -> simpy.Event:
        _, rank, index = self._orders[op.index]
        self._pools[op.die].ask((ready_us, rank, index), op)
        self._asking.add(op.die)
        event = self._granted[index] = self._env.event()
        self._settle_later()
        return event

    def _begin(self, op: Op) -> simpy.Event:
        self._starting.append(op)
        event = self._finished[op.index] = self._env.event()
        self._settle_later()
        return event

    def _release(self, op: Op) -> None:
        pool = self._pools[op.die]
        pool.release(op)
        self._asking.add(op.die)
        self._settle_later()

    def _tell_dependents(self, index: int) -> None:
        for dependent in self._dependents[index]:
            self._open_deps[dependent] -= 1
            if not self._open_deps[dependent] and dependent in self._deps_met:
                self._deps_met.pop(dependent).succeed()

    # One instant: rule 8.

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            _Settle(self._env, self._settle)

    def _settle(self, _: simpy.Event) -> None:
        self._settling = False
        if self._ending:
            self._end_bodies()
        elif self._asking:
            self._grant_cores()
        elif self._starting:
            self._start_bodies()
        else:
            self._flows.share_rates()
        if self._ending or self._asking or self._starting or self._flows.changed:
            self._settle_later()

    def _end_bodies(self) -> None:
        now = self._env.now
        ending, self._ending = self._ending, []
        for body in sorted(ending, key=lambda body: body.order):
            index = body.index
            op = self._graph.ops[index]
            self._body_us[index] = (self._body_us[index][0], now)
            self._flows.end(body)
            self._leave_l2(op, body, now)
            if op.rendezvous is None:
                self._finished.pop(index).succeed()
                continue
            collective = self._collectives[op.rendezvous]
            collective.ended += 1
            if collective.ended == len(collective.members):
                for member in collective.members:
                    self._finished.pop(member.index).succeed()

    def _grant_cores(self) -> None:
        asking, self._asking = self._asking, set()
        for die in sorted(asking):
            pool = self._pools[die]
            for op in pool.grant():
                self._granted.pop(op.index).succeed()
            if self._observer is not None:
                aic = pool.aic_count - pool.aic_free
                self._observer.cores(self._env.now, die, aic, pool.aiv_count - pool.aiv_free)

    def _start_bodies(self) -> None:
        arrived, self._starting = self._starting, []
        starting = []
        for op in arrived:
            if op.rendezvous is None:
                starting.append(op)
                continue
            collective = self._collectives[op.rendezvous]
            collective.waiting.append(op)
            if len(collective.waiting) == len(collective.members):
                starting.extend(collective.members)
        for op in sorted(starting, key=lambda op: self._orders[op.index]):
            self._start_body(op)

    def _start_body(self, op: Op) -> None:
        now = self._env.now
        demand = op.demand
        resident = self._read_weights(op) if demand.weights else 0.0
        here = self._resources[op.die]
        there = here if op.peer is None else self._resources[op.peer]
        body = Body(now, self._orders[op.index], demand, resident, here, there)
        self._bodies[op.index] = body
        self._body_us[op.index] = (now, now)
        self._resident[op.index] = resident
        fills = demand.fills
        if fills is not None:
            if self._stops and self._l2[op.die].was_read(fills.weight):
                self._ending.append(body)
                return
            self._l2[op.die].start_fill(body, fills)
        if body.alone_us * GRID_PER_US < 1.0:
            body.finish(now)
            self._ending.append(body)
        else:
            self._flows.start(body)

    def _due(self, body: Body) -> None:
        self._ending.append(body)
        self._settle_later()

    # L2: rule 7.

    def _read_weights(self, op: Op) -> float:
        l2 = self._l2[op.die]
        reads = op.demand.weights
        resident = l2.read(reads, self._env.now)
        if self._stops:
            for body in l2.fills_of(reads):
                if body not in self._ending:
                    body.version += 1
                    self._ending.append(body)
        if self._observer is not None:
            self._observer.resident(self._env.now, op.die, l2.held_bytes)
        return resident

    def _leave_l2(self, op: Op, body: Body, now: float) -> None:
        l2 = self._l2[op.die]
        if op.demand.fills is not None:
            if not l2.is_filling(body):
                return
            l2.end_fill(body, now)
        elif self._pollution > 0.0 and body.hbm_part > 0.0:
            l2.pollute(body.hbm_part * self._pollution, now)
        else:
            return
        if self._observer is not None:
            self._observer.resident(now, op.die, l2.held_bytes)
