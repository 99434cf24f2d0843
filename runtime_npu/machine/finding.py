"""One answer of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "fault", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, what was found and, for a fault, what to do about it.

    ``unknown`` stands where a check needs something that an earlier fault took away.
    """

    check: str
    status: Status
    found: str
    fix: str = ""


def judge(check: str, good: bool, found: str, fix: str) -> Finding:
    """An ``ok`` finding, or a ``fault`` with its ``fix``."""
    return Finding(check, "ok", found) if good else Finding(check, "fault", found, fix)
