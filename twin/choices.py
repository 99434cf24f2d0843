"""Choices that several commands take from their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hardware_models.hardware import Hardware, load_hardware

Level = float | str
"""A level of a searched knob: a number, or a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareChoice:
    """A die and changed numbers of it; ``die`` None is the one that the schedule names."""

    die: str | None
    values: Mapping[str, float]

    def load(self, scheduled: str) -> Hardware:
        """The chosen die with the changed numbers.

        Raises:
            InputError: unknown die, unreadable file or unknown parameter.
        """
        return load_hardware(self.die or scheduled).with_values(self.values)
