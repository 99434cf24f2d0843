"""What a command simulates: a schedule's file, its model and the die, checked together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware_models.errors import InfeasibleError
from hardware_models.hardware import Hardware
from twin.choices import HardwareChoice
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.results import write_result
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.feasible import rejection
from twin.validate import validate_schedule


@dataclass(frozen=True, slots=True)
class Given:
    """A schedule of a file (or a shipped name) and what it is simulated on."""

    source: str
    schedule: Schedule
    model: ModelSpec
    hardware: Hardware

    def refuse_infeasible(
        self, folder: Path, command: str, seed: int, packages: Sequence[str] = ()
    ) -> None:
        """Write the ``result.json`` of a schedule that does not fit, and stop.

        Raises:
            InfeasibleError: the schedule does not fit in a die's memory.
        """
        reason = rejection(self.schedule, self.model, self.hardware)
        if reason is not None:
            refused = {"infeasible": {reason.reason: 1}, "detail": reason.detail}
            write_result(folder, command, seed, refused, packages)
            raise InfeasibleError(f"{self.source}: {reason.detail}")


def load_given(source: str, die: HardwareChoice) -> Given:
    """The schedule ``source``, checked on ``die``, which may be another than its file's.

    Raises:
        InputError: the schedule, the model or the die is wrong, or they do not go together.
    """
    schedule = load_schedule(source)
    model = load_model(schedule.model)
    hardware = die.load(schedule.deployment.hardware)
    validate_schedule(schedule, model, hardware)
    return Given(source, schedule, model, hardware)
