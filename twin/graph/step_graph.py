"""StepGraph: the ops of one step on their streams and dies, with their dependencies."""

from __future__ import annotations

from dataclasses import dataclass

from hardware_models.demand import Cores, Demand, OpSpec
from hardware_models.hardware import Hardware
from twin.deployment import Role

PREFETCH_STREAM = "prefetch"


@dataclass(frozen=True, slots=True)
class Op:
    """One launch on one die.

    ``cores`` are asked for all or nothing and held from start to end.  ``deps`` are
    indices (into ``StepGraph.ops``) of ops, on any die, that must have ended before it
    starts.  ``gap_us`` is the launch gap behind the previous op of its stream and
    ``release_us`` the earliest start (host launch in eager mode).  Ops with the same
    ``rendezvous`` key on several dies form a collective: their bodies start together,
    when the last member's head is done, and end together.  ``peer`` is the die at the other
    end of a link transfer.  ``limit`` is what the schedule let the op's stream use (all cores
    of the die where it sets no limit); ``cores`` is what the op takes of it.
    """

    index: int
    name: str
    spec: OpSpec
    die: int
    stream: str
    cores: Cores
    demand: Demand
    deps: tuple[int, ...] = ()
    scope: str | None = None
    gap_us: float = 0.0
    release_us: float = 0.0
    rendezvous: str | None = None
    peer: int | None = None
    limit: Cores | None = None

    @property
    def kind(self) -> str:
        """The op kind, for example ``matmul``."""
        return self.spec.kind


@dataclass(frozen=True, slots=True)
class Die:
    """One simulated die: its role and its index in the graph."""

    index: int
    role: Role


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The ops of one step in issue order (per die and stream, the order of ``ops``).

    ``period_marks`` are the indices of the last op of each layer on die 0's main stream:
    where a steady layer period can be read off.  ``clipped`` lists prefetches that asked
    for more bytes than their weight has, as (weight, asked, given).
    """

    hardware: Hardware
    dies: tuple[Die, ...]
    ops: tuple[Op, ...]
    period_marks: tuple[int, ...] = ()
    clipped: tuple[tuple[str, int, int], ...] = ()
