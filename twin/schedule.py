"""Schedule: the one contract between search, twin and runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twin.deployment import Deployment, Role
from twin.workload import Workload

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimit:
    """Core limit of a stream within a stage; ``None`` means all cores of the die."""

    aic: int | None = None
    aiv: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stretch of every layer with its streams and core limits.

    ``ends_after`` names the op of the main stream that closes the stage (``None`` on the
    last one).  ``join`` names the op at which the stage's streams meet.
    """

    name: str
    streams: Mapping[str, CoreLimit]
    role: Role = "colocated"
    ends_after: str | None = None
    join: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """Bring ``bytes`` of ``weight`` from HBM to L2 once the output of op ``after`` is ready."""

    weight: str
    after: str
    bytes: int
    role: Role | None = None
    """The role that issues it; ``None`` = the role that holds attention (or colocated)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoePlan:
    """How the MoE is cut: prefill chunk length and redundant expert copies."""

    chunk_tokens: int | None = None
    redundant_experts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlan:
    """How a prefill step is cut: the sequences of a die run as so many micro-batches in turn."""

    micro_batches: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All that is decided about one step; one file reproduces a result."""

    format: int
    model: str
    """A shipped model's name, or the path of a checkpoint's config.json."""
    workload: Workload
    deployment: Deployment
    stages: tuple[Stage, ...]
    prefetch: tuple[Prefetch, ...] = ()
    super_kernel: tuple[str, ...] = ()
    """Scopes: a stage's name, or ``stage.stream``."""
    moe: MoePlan = field(default_factory=MoePlan)
    prefill: PrefillPlan | None = None
    """Of a prefill step only; absent: in one piece."""

    @property
    def micro_batches(self) -> int:
        """Parts that the sequences of an attention group are cut into."""
        if self.deployment.afd is not None:
            return self.deployment.afd.micro_batches
        return 1 if self.prefill is None else self.prefill.micro_batches

    def prefetches_of(self, role: Role) -> tuple[Prefetch, ...]:
        """The prefetches that ``role`` issues (without a role: the one that holds attention)."""
        default = self.deployment.attention_role
        return tuple(p for p in self.prefetch if (p.role or default) == role)
