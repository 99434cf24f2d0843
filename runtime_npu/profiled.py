"""A rank that measures itself, op by op as the op record names them, on two clocks.

The first half of the decode steps runs plainly: its thread's CPU clock, read at every issue,
gives the times of ops and steps whatever else the machine does.  The second half runs under
torch.profiler, with a range an op: wall times, in which other processes and waiting count.
An op lasts from its issue to that of the next one, so that what Python needs between ops is in
them, as a launch gap is on an NPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from typing_extensions import override

from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.generate import Decoder
from runtime_npu.model.longcat import StepOutput
from runtime_npu.parallel.layout import LastRows
from runtime_npu.record import Event


@dataclass(frozen=True, slots=True)
class StepTime:
    """A plain step from its first op's issue to its last op's end: wall time, and its ops' CPU."""

    wall_us: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What a rank measured.

    ``op_us`` is each op's median CPU time over the plain steps by its name in the record,
    ``op_wall_us`` its median wall time in the profiled ones; ``routed`` the mean rows and active
    experts of each grouped product; ``steps`` the plain steps, the first (a warm-up) left out.
    """

    op_us: Mapping[str, float]
    op_wall_us: Mapping[str, float]
    routed: Mapping[str, tuple[float, float]]
    steps: tuple[StepTime, ...]


@contextmanager
def one_thread() -> Iterator[None]:
    """A rank stands for a die of one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ProfiledBackend(ReferenceBackend):
    """The reference backend, with a range of the profiler's around every op."""

    def __init__(self) -> None:
        super().__init__()
        self._range = ExitStack()
        self._name = ""
        self._issues: list[tuple[str, float]] = []
        self._walls = (0.0, 0.0)
        self.is_profiling = False
        self.routed: dict[str, list[tuple[int, int]]] = {}

    @override
    def launch(self, name: str, kind: str) -> Event:
        self._leave()
        if not self._issues:
            self._walls = (time.perf_counter(), 0.0)
        self._name = name
        if self.is_profiling:
            self._range.enter_context(record_function(name))
        event = super().launch(name, kind)
        self._issues.append((name, time.thread_time()))
        return event

    @override
    def _by_expert(
        self,
        product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        x: torch.Tensor,
        weight: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        self.routed.setdefault(self._name, []).append((len(x), int((counts > 0).sum())))
        return super()._by_expert(product, x, weight, counts)

    def end_op(self) -> None:
        """The last op issued is done."""
        self._leave()
        self._issues.append(("", time.thread_time()))
        self._walls = (self._walls[0], time.perf_counter())

    def take_step(self) -> tuple[StepTime, list[tuple[str, float]]]:
        """Since the last call: the time from the first op's issue to the last op's end; each op's.

        No op ran: zeros.
        """
        issues, self._issues = self._issues, []
        ops = [(name, (end - start) * 1e6) for (name, start), (_, end) in pairwise(issues) if name]
        wall = (self._walls[1] - self._walls[0]) * 1e6
        return StepTime(wall, sum(us for _, us in ops)), ops

    def _leave(self) -> None:
        self._range.close()


@dataclass(slots=True)
class _Steps:
    plain: int
    seen: int = 0
    times: list[StepTime] = field(default_factory=list)
    ops: dict[str, list[float]] = field(default_factory=dict)


class ProfiledDecoder(Decoder):
    """A decoder whose steps are timed, and profiled from step ``plain`` on."""

    backend: ProfiledBackend

    def watch(self, backend: ProfiledBackend, plain: int) -> None:
        """Measure the steps from now on."""
        self.backend = backend
        self._steps = _Steps(plain)
        self._profiler: Any = profile(activities=[ProfilerActivity.CPU], acc_events=True)

    @override
    def verify(self, rows: Sequence[Sequence[int]]) -> StepOutput:
        self._note()
        if self._steps.seen == self._steps.plain:
            self._profiler.start()
            self.backend.is_profiling = True
        self._steps.seen += 1
        return super().verify(rows)

    @override
    def _all_tokens(self, tokens: torch.Tensor, last: LastRows) -> list[list[int]]:
        self.backend.end_op()
        return super()._all_tokens(tokens, last)

    def _note(self) -> None:
        step, ops = self.backend.take_step()
        if 1 < self._steps.seen <= self._steps.plain:
            self._steps.times.append(step)
            for name, us in ops:
                self._steps.ops.setdefault(name, []).append(us)
        elif self._steps.seen <= 1:
            self.backend.routed.clear()

    def found(self) -> RankProfile:
        """All that was measured; the profiler stops."""
        self._note()
        walls: dict[str, list[float]] = {}
        if self.backend.is_profiling:
            self.backend.is_profiling = False
            self._profiler.stop()
            for event in self._profiler.events():
                if event.is_user_annotation:
                    walls.setdefault(event.name, []).append(event.time_range.elapsed_us())
        return RankProfile(
            op_us=_medians(self._steps.ops),
            op_wall_us=_medians(walls),
            routed={
                name: (statistics.mean(r for r, _ in own), statistics.mean(a for _, a in own))
                for name, own in self.backend.routed.items()
            },
            steps=tuple(self._steps.times),
        )


def _medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(own) for name, own in times.items()}
