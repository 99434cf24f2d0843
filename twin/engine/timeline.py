"""Timeline: what an engine answers, one record per op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Bound = Literal[
    "cube", "vector", "latency", "hbm_die", "hbm_core", "l2_core", "l2", "sdma", "link",
    "peer", "launch", "cores",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpRecord:
    """When an op ran and what held it up.

    ``wait_us`` is the time its stream stood idle before it for dependencies, cores or the
    host; ``body_us`` the time from the end of its head to its end; ``peer_wait_us`` the
    part of it in which it sat in a collective waiting for the last member, before its own
    body or after it.  ``resident_bytes`` of its weights came from L2.  ``bound`` is what
    limited its own body for most of its time; ``peer``, ``launch`` or ``cores`` where waiting
    for members, launching or waiting for cores took longer (rule 9 of the reference engine).
    ``prefetch`` marks an op that only brings a weight into L2.
    """

    index: int
    start_us: float
    end_us: float
    wait_us: float
    peer_wait_us: float
    body_us: float
    resident_bytes: float
    bound: Bound
    prefetch: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """Records in the order of the graph's ops."""

    records: tuple[OpRecord, ...]

    @property
    def makespan_us(self) -> float:
        """End of the last op that does work for the step.

        A prefetch does none: where a reader does not wait for it, neither does the step.
        """
        return max((record.end_us for record in self.records if not record.prefetch), default=0.0)
