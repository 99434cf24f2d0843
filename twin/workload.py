"""Workload: what the deployment is asked to do in one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode"]
ExpertLoad = Literal["balanced", "uniform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One step's traffic.

    ``global_batch`` sequences over all attention dies.  In decode each has ``kv_tokens`` in
    its KV cache; in prefill ``kv_tokens`` is the length of each prompt, and the step computes
    all of it.  ``next_n`` MTP drafts per decode step, of which ``acceptance`` (0 .. next_n)
    are accepted on average: tokens per step and sequence = 1 + acceptance.  ``expert_load``
    balanced deals ids round-robin; uniform draws them independently.
    """

    phase: Phase
    global_batch: int
    kv_tokens: int
    next_n: int = 0
    acceptance: float = 0.0
    expert_load: ExpertLoad = "balanced"

    @property
    def is_prefill(self) -> bool:
        """Whether the step computes whole prompts."""
        return self.phase == "prefill"

    @property
    def latency_name(self) -> str:
        """What a user waits for: TTFT (the first token) in prefill, TPOT (each next) in decode."""
        return "TTFT" if self.is_prefill else "TPOT"

    @property
    def rows_per_sequence(self) -> int:
        """Token rows that one sequence brings into a step: its prompt, or a token and drafts."""
        return self.kv_tokens if self.is_prefill else 1 + self.next_n

    @property
    def positions(self) -> int:
        """Tokens of a sequence that its KV cache has room for in this step."""
        return self.kv_tokens if self.is_prefill else self.kv_tokens + self.rows_per_sequence

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step gets done per sequence: new ones, or the prompt's."""
        return float(self.kv_tokens) if self.is_prefill else 1.0 + self.acceptance


def chance_of(accepted: float, drafts: int) -> float:
    """Chance of each draft that gives so many accepted ones of ``drafts``.

    A draft counts only where all before it were accepted, each with the same chance p:
    accepted = p + p^2 + ... for one or two drafts.
    """
    least = max(accepted, 0.0)
    return least if drafts < 2 else (math.sqrt(1 + 4 * least) - 1) / 2


def accepted_of(chance: float, drafts: int) -> float:
    """Accepted drafts of a step, each accepted with ``chance`` where all before it were."""
    return float(sum(chance**i for i in range(1, drafts + 1)))
