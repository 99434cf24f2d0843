"""What an import gives: the schedule, what was assumed, what the schedule cannot say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.models import load_model
from twin.schedule import Schedule
from twin.validate import validate_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A schedule out of a launch configuration.

    ``assumed`` holds what the configuration leaves open and this import chose, by name;
    ``not_modelled`` says in words which of its settings a schedule has no field for although
    they may change a step.
    """

    schedule: Schedule
    assumed: Mapping[str, object]
    not_modelled: tuple[str, ...] = ()


def checked(imported: Imported, keys: Sequence[tuple[str, str]], source: str) -> Imported:
    """The same import, once its schedule has passed every rule.

    Args:
        imported: an import.
        keys: ends of a schedule's field names, each with the key that it came from.
        source: the file that errors name.

    Raises:
        InputError: a rule is broken; names the file and the key where ``keys`` knows it.
    """
    schedule = imported.schedule
    try:
        hardware = load_hardware(schedule.deployment.hardware)
        validate_schedule(schedule, load_model(schedule.model), hardware)
    except InputError as error:
        if error.source:
            raise
        field = next((key for end, key in keys if error.field.endswith(end)), error.field)
        raise InputError(field, error.value, error.allowed, source) from None
    return imported
