"""Flows: the bodies that run, their speeds over time, and the events of their ends."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from twin.engine.fluid import Body, Resource, alone, connected, on_grid, share
from twin.engine.observer import Observer
from twin.engine.timeline import Bound


class Flows:
    """Bodies on a simpy clock.

    Bodies start and end at once, but speeds are shared anew only by :meth:`share_rates`,
    when all that happens at an instant has happened.  ``due`` is called when the end that
    was last set for a body comes.
    """

    def __init__(
        self,
        env: simpy.Environment,
        due: Callable[[Body], None],
        observer: Observer | None,
        *,
        contention: bool,
    ) -> None:
        self._env = env
        self._due = due
        self._observer = observer
        self._contention = contention
        self._changed: dict[Resource, None] = {}

    @property
    def changed(self) -> bool:
        """Whether bodies started or ended since the last :meth:`share_rates`."""
        return bool(self._changed)

    def start(self, body: Body) -> None:
        """Let ``body`` run from now on."""
        if self._contention and body.loads:
            for resource, _, _ in body.loads:
                resource.users[body] = None
                self._changed[resource] = None
        else:
            self._set_speed(body, *alone(body))

    def end(self, body: Body) -> None:
        """Let ``body`` run no longer, whether it is done, stopped or never ran."""
        body.advance(self._env.now)
        for resource, _, _ in body.loads:
            if body in resource.users:
                del resource.users[body]
                self._changed[resource] = None
        if self._observer is not None and body.speed > 0.0:
            self._observe(body, 0.0)

    def share_rates(self) -> None:
        """Give new speeds to all bodies that share resources with what changed."""
        changed, self._changed = list(self._changed), {}
        for group in connected(changed):
            for body, (speed, bound) in zip(group, share(group), strict=True):
                if speed != body.speed or bound != body.bound:
                    self._set_speed(body, speed, bound)

    def _set_speed(self, body: Body, speed: float, bound: Bound) -> None:
        now = self._env.now
        body.advance(now)
        body.bound = bound
        if speed == body.speed:
            return
        body.speed = speed
        body.version += 1
        end_us = on_grid(now + max(0.0, 1.0 - body.done) / speed)
        timer = self._env.timeout(end_us - now, (body, body.version))
        timer.callbacks.append(self._timer_rang)
        if self._observer is not None:
            self._observe(body, speed)

    def _timer_rang(self, timer: simpy.Event) -> None:
        assert timer.value is not None
        body, version = timer.value
        if version == body.version:
            body.finish(self._env.now)
            self._due(body)

    def _observe(self, body: Body, speed: float) -> None:
        assert self._observer is not None
        loads = [(resource.name, resource.die, amount) for resource, amount, _ in body.loads]
        self._observer.speed(self._env.now, body.index, speed, loads)
