"""Feasibility: why a candidate cannot run, before anything is simulated."""

from __future__ import annotations

from dataclasses import dataclass

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.memory import memory_ledger
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.validate import validate_schedule

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a candidate is out: ``reason`` groups like cases, ``excess`` says by how much.

    ``excess`` is a share of what is allowed where the constraint has a size (memory), else 1.
    """

    reason: str
    detail: str
    excess: float


def rejection(schedule: Schedule, model: ModelSpec, hardware: Hardware) -> Rejection | None:
    """The first constraint that the schedule breaks, or ``None`` when it can run."""
    try:
        validate_schedule(schedule, model, hardware)
    except InputError as error:
        return rejected(error)
    for role, ledger in memory_ledger(schedule, model, hardware).items():
        if ledger.excess_bytes > 0:
            detail = (
                f"memory of a {role} die: {ledger.total_bytes / GIB:.1f} GiB needed, "
                f"{ledger.capacity_bytes / GIB:.0f} GiB there, "
                f"{ledger.excess_bytes / GIB:.1f} GiB too much"
            )
            share = ledger.excess_bytes / ledger.capacity_bytes
            return Rejection(f"memory of a {role} die", detail, share)
    return None


def rejected(error: InputError) -> Rejection:
    """A broken rule as a rejection."""
    return Rejection(f"{error.field}: {error.allowed}", str(error), 1.0)
