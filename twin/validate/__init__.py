"""The rules of a schedule: what the model, the die, graph modes and transports allow."""

from __future__ import annotations

from hardware_models.hardware import Hardware
from twin.model_spec import ModelSpec
from twin.schedule import FORMAT, Schedule
from twin.validate.deployment import check_deployment
from twin.validate.prefetch import check_prefetches
from twin.validate.prefill import check_prefill
from twin.validate.rules import require
from twin.validate.stages import check_stages
from twin.validate.workload import check_workload

__all__ = ["validate_schedule"]


def validate_schedule(schedule: Schedule, model: ModelSpec, hardware: Hardware) -> None:
    """Check every rule; memory is not one (it is a result: see :mod:`twin.memory`).

    Raises:
        InputError: names the first field that breaks a rule, its value and what is allowed.
    """
    require(schedule.format == FORMAT, "format", schedule.format, str(FORMAT))
    check_workload(schedule.workload, model)
    check_deployment(schedule, model)
    check_prefill(schedule)
    check_stages(schedule, hardware)
    check_prefetches(schedule)
