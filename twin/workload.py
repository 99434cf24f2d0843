"""Workload: what the deployment is asked to do in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode"]
ExpertLoad = Literal["balanced", "uniform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One decode step's traffic.

    ``global_batch`` sequences over all attention dies, each with ``kv_tokens`` in its KV
    cache.  ``next_n`` MTP drafts per step, of which ``acceptance`` (0 .. next_n) are
    accepted on average: tokens per step and sequence = 1 + acceptance.  ``expert_load``
    balanced deals ids round-robin; uniform draws them independently.
    """

    phase: Phase
    global_batch: int
    kv_tokens: int
    next_n: int = 0
    acceptance: float = 0.0
    expert_load: ExpertLoad = "balanced"

    @property
    def rows_per_sequence(self) -> int:
        """Token rows that one sequence brings into a decode step."""
        return 1 + self.next_n

    @property
    def tokens_per_step(self) -> float:
        """New tokens per sequence and step."""
        return 1.0 + self.acceptance
