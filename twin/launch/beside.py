"""What a schedule needs and no launch file says: the die, the weights' type, the traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from twin.deployment import Quantisation
from twin.schedule import Schedule
from twin.workload import ExpertLoad

ASSUMED_ACCEPTANCE: Mapping[int, float] = {0: 0.0, 1: 0.7, 2: 1.15}
"""Accepted drafts per step by next_n where nobody says.

No figure of LongCat-Flash is published: 0.7 is what the recipe's authors state for one draft of
another model, 1.15 for two is interpolated from their figures for one and three.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Fields of a schedule that stand beside a launch file.

    ``acceptance`` None is :data:`ASSUMED_ACCEPTANCE`.  ``expert_load`` counts where the file
    has no switch for it.
    """

    model: str
    hardware: str
    quantisation: Quantisation
    kv_tokens: int
    acceptance: float | None = None
    expert_load: ExpertLoad = "balanced"

    def acceptance_for(self, next_n: int) -> float:
        """The acceptance as given, or as assumed for ``next_n`` drafts."""
        return ASSUMED_ACCEPTANCE[next_n] if self.acceptance is None else self.acceptance

    def as_data(self) -> dict[str, object]:
        """Plain keys and values."""
        return asdict(self)


def beside_of(schedule: Schedule) -> Beside:
    """What stands beside a launch file of ``schedule``."""
    return Beside(
        model=schedule.model,
        hardware=schedule.deployment.hardware,
        quantisation=schedule.deployment.quantisation,
        kv_tokens=schedule.workload.kv_tokens,
        acceptance=schedule.workload.acceptance,
        expert_load=schedule.workload.expert_load,
    )


def served_beside_of(schedule: Schedule) -> Beside:
    """The same with weights that people serve: bf16 or w8a8; fp32 is for CPUs."""
    beside = beside_of(schedule)
    return replace(beside, quantisation="bf16") if beside.quantisation == "fp32" else beside
