"""Confirm the schedules that an answer names: the full step, and the interval of the latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console
from rich.progress import track

from hardware_models.hardware import Hardware
from twin.evaluate import Evaluation, evaluate, with_interval
from twin.evidence import with_evidence
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.search.pool import Workers
from twin.uncertainty import draw_hardware, latency_spread


@dataclass(frozen=True)
class Confirmation:
    """What every confirmation shares."""

    model: ModelSpec
    hardware: Hardware
    draws: int
    seed: int

    def of(self, schedule: Schedule) -> Evaluation:
        """The full step of one schedule, with its interval when draws are asked for."""
        plain = evaluate(schedule, self.model, self.hardware)
        result = with_evidence(plain, self.model, self.hardware)
        if not self.draws:
            return result
        spread = latency_spread(schedule, self.model, self._variants)
        return with_interval(result, spread, self.hardware)

    @cached_property
    def _variants(self) -> list[Hardware]:
        """The draws, made once in each process."""
        return draw_hardware(self.hardware, self.draws, self.seed)


def confirm(
    confirmation: Confirmation, schedules: Sequence[Schedule], workers: Workers
) -> list[Evaluation]:
    """Evaluations in the order of ``schedules``, the same for any number of workers."""
    results = workers.map(confirmation.of, schedules)
    return list(track(results, "confirming", len(schedules), console=Console(stderr=True)))
