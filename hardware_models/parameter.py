"""Parameters: the named, sourced numbers that a hardware model consists of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hardware_models.errors import InputError

Evidence = Literal["measured", "fitted", "interpolated", "guessed", "stated"]
"""Where a number comes from.  ``stated`` is a vendor's specification; the rest as named."""

EVIDENCE_FROM_WEAKEST: tuple[Evidence, ...] = (
    "guessed",
    "interpolated",
    "stated",
    "fitted",
    "measured",
)


_POSITIVE = ("_gbps", "_ghz", "_count", "_efficiency", "_per_cycle")
"""Endings of what is divided by: rates, clocks, counts and efficiencies."""
_COUNTED = ("cores", "dies")
"""Units of what only comes whole."""
_NOT_NEGATIVE = ("_us", "_bytes", "_us_per_kb", "_us_per_row")
"""Endings of times and sizes; exponents may be negative."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a hardware model.

    ``low`` .. ``high`` is the range that the evidence allows (not a hard limit of the
    formula); ``source`` says where value and range come from.

    Raises:
        InputError: the value is not finite, negative, zero where it is divided by, or
            outside its own range.
    """

    name: str
    value: float
    unit: str
    low: float
    high: float
    evidence: Evidence
    source: str

    def __post_init__(self) -> None:
        if not all(math.isfinite(x) for x in (self.value, self.low, self.high)):
            raise InputError(self.name, self.value, "a finite number with a finite range")
        if self.name.endswith(_POSITIVE) and self.value <= 0:
            raise InputError(self.name, self.value, "a number above 0")
        if self.name.endswith("_efficiency") and self.high > 1:
            raise InputError(self.name, self.high, "a share up to 1, its range too")
        if self.name.endswith(_NOT_NEGATIVE) and self.value < 0:
            raise InputError(self.name, self.value, "a number from 0")
        if self.unit in _COUNTED and (self.value < 1 or self.value != int(self.value)):
            raise InputError(self.name, self.value, "a whole number from 1")
        if not self.low <= self.value <= self.high:
            raise InputError(
                self.name, self.value, f"a value inside its own range [{self.low}, {self.high}]"
            )
