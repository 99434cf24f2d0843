"""A rank that measures itself, op by op as the op record names them.

The first half of the decode steps runs plainly: the wall clock, read at every issue, gives the
times of ops and steps, and the thread's CPU clock beside it says how much of them the rank was
running (the rest went to other processes, or into waiting for other ranks).  The second half
runs under torch.profiler, with a range an op, as a second look at the same ops.
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
class OpTime:
    """An op's wall time, and the time in which its thread ran."""

    wall_us: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A plain step: wall time from its first op's issue to its last op's end; ops by name."""

    wall_us: float
    ops: Mapping[str, OpTime]


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What a rank measured.

    ``steps`` are the plain steps, the first (a warm-up) left out; ``profiled_us`` is each op's
    median wall time in the profiled ones by its name in the record; ``routed`` the mean rows and
    active experts of each grouped product.
    """

    steps: tuple[StepTimes, ...]
    profiled_us: Mapping[str, float]
    routed: Mapping[str, tuple[float, float]]


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
        self._issues: list[tuple[str, float, float]] = []
        self.is_profiling = False
        self.routed: dict[str, list[tuple[int, int]]] = {}

    @override
    def launch(self, name: str, kind: str) -> Event:
        self._leave()
        self._name = name
        if self.is_profiling:
            self._range.enter_context(record_function(name))
        event = super().launch(name, kind)
        self._note(name)
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
        self._note("")

    def take_step(self) -> StepTimes:
        """What was issued since the last call; no op ran: zero."""
        issues, self._issues = self._issues, []
        ops = {
            name: OpTime((end - start) * 1e6, (cpu_end - cpu) * 1e6)
            for (name, start, cpu), (_, end, cpu_end) in pairwise(issues)
            if name
        }
        wall = (issues[-1][1] - issues[0][1]) * 1e6 if issues else 0.0
        return StepTimes(wall, ops)

    def _note(self, name: str) -> None:
        self._issues.append((name, time.perf_counter(), time.thread_time()))

    def _leave(self) -> None:
        self._range.close()


@dataclass(slots=True)
class _Steps:
    plain: int
    seen: int = 0
    times: list[StepTimes] = field(default_factory=list)


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
        step = self.backend.take_step()
        if 1 < self._steps.seen <= self._steps.plain:
            self._steps.times.append(step)
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
            steps=tuple(self._steps.times),
            profiled_us={name: statistics.median(own) for name, own in walls.items()},
            routed={
                name: (statistics.mean(r for r, _ in own), statistics.mean(a for _, a in own))
                for name, own in self.backend.routed.items()
            },
        )
