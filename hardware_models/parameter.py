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


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a hardware model.

    ``low`` .. ``high`` is the range that the evidence allows (not a hard limit of the
    formula); ``source`` says where value and range come from.

    Raises:
        InputError: the value is not finite, or lies outside its own range.
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
        if not self.low <= self.value <= self.high:
            raise InputError(
                self.name, self.value, f"a value inside its own range [{self.low}, {self.high}]"
            )
