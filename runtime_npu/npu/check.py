"""What a run on NPUs does not do, refused before anything starts."""

from __future__ import annotations

from hardware_models.errors import InputError
from runtime_npu.options import RunOptions
from twin.schedule import Schedule

QUANTISATIONS = ("bf16", "w8a8")


def check_deployment(schedule: Schedule, source: str) -> None:
    """Refuse a deployment that the npu backend leaves out.

    Raises:
        InputError: names the field.
    """
    quantisation = schedule.deployment.quantisation
    if quantisation not in QUANTISATIONS:
        allowed = f"{' or '.join(QUANTISATIONS)} (what fused ops compute in)"
        raise InputError("deployment.quantisation", quantisation, allowed, source)


def check_prompts(schedule: Schedule, count: int) -> None:
    """Refuse more prompts than the windows of direct transfers are made for.

    Raises:
        InputError: there are.
    """
    most = schedule.workload.global_batch
    if schedule.deployment.is_direct and count > most:
        allowed = f"at most {most} with direct transfers: the schedule's own batch"
        raise InputError("prompts", count, allowed)


def check_for_npu(options: RunOptions, schedule: Schedule) -> None:
    """Refuse what only the reference backend does.

    Raises:
        InputError: names the option or field.
    """
    check_deployment(schedule, options.schedule)
    if options.temperature > 0:
        raise InputError("temperature", options.temperature, "0 (greedy) with device=npu")
