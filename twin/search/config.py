"""Configuration of a search, as Hydra composes it from ``scenarios/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hardware_models.errors import InputError
from twin.choices import HardwareChoice, Level
from twin.deployment import GraphMode, Quantisation, Role, Transport
from twin.validate.workload import MOST_DRAFTS
from twin.workload import ExpertLoad

Kind = Literal["colocated", "afd", "prefill"]
Executor = Literal["processes", "ray"]
Drives = Literal[
    "ratio", "micro_batches", "transport", "cores", "vector_cores", "prefetch", "place",
    "super_kernel", "ends_after", "drafts", "chunk", "sizes", "batch",
]  # fmt: skip
_COMPANIONS: Mapping[str, tuple[str, ...]] = {
    "cores": ("stage",),
    "vector_cores": ("stage",),
    "ends_after": ("stage",),
    "prefetch": ("weights", "role"),
    "place": ("weights", "role"),
    "sizes": ("sizes",),
}
"""What a knob says beside its levels, by what it drives."""
PARALLEL_SIZES = ("attention_tp", "o_proj_tp", "dense_tp", "kvp", "lm_head_tp", "embed_tp")
"""Sizes of the role that holds attention, which overrides and knobs may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One decision that the search varies: what it drives, and the levels tried.

    - ``ratio``, ``transport``: of an AFD deployment; ``micro_batches``: of AFD or of prefill.
    - ``cores``: cube cores of ``stage``'s main stream (twice as many vector cores), the rest
      for its moe stream; ``vector_cores``: its vector cores apart from that.
    - ``prefetch``: share of each of ``weights`` (weight: op after which it is issued) that
      ``role`` prefetches; ``place``: the op after which ``weights`` are issued instead.
    - ``ends_after``: the op of the main stream that closes ``stage``, so which ops the next one
      puts beside each other; ``drafts``: MTP depth, each draft as likely accepted as the base's.
    - ``super_kernel``: 1 keeps the base's SuperKernel scopes, 0 has none.
    - ``chunk``: token rows of a die that go through the experts at once in prefill.
    - ``sizes``: dies of each of the parallel ``sizes``; ``batch``: the global batch.
    """

    drives: Drives
    levels: tuple[Level, ...]
    stage: str | None = None
    role: Role | None = None
    weights: Mapping[str, str] | None = None
    sizes: tuple[str, ...] | None = None

    def check(self, name: str) -> None:
        """Refuse levels and companions that make no sense for what the knob drives.

        Raises:
            InputError: names the knob's key.
        """
        key = f"search.knobs.{name}"
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise InputError(f"{key}.levels", list(self.levels), "at least one level, each once")
        names = self.drives in ("transport", "place", "ends_after")
        if any(isinstance(level, str) is not names for level in self.levels):
            raise InputError(f"{key}.levels", list(self.levels), "names" if names else "numbers")
        self._check_levels(f"{key}.levels")
        known = _COMPANIONS.get(self.drives, ())
        for companion in ("stage", "role", "weights", "sizes"):
            given = getattr(self, companion)
            if given is not None and companion not in known:
                raise InputError(
                    f"{key}.{companion}", given, f"nothing: {self.drives} has no {companion}"
                )
        if self.drives in ("prefetch", "place") and not self.weights:
            raise InputError(f"{key}.weights", self.weights, "weights with the op before each")
        if "stage" in known and self.stage is None:
            raise InputError(f"{key}.stage", None, "the name of a stage")
        if self.drives == "sizes" and (
            not self.sizes or not set(self.sizes) <= set(PARALLEL_SIZES)
        ):
            allowed = f"some of {', '.join(PARALLEL_SIZES)}"
            raise InputError(f"{key}.sizes", self.sizes, allowed)

    def _check_levels(self, key: str) -> None:
        numbers = [level for level in self.levels if not isinstance(level, str)]
        if self.drives == "prefetch":
            if not all(0 <= level <= 1 for level in numbers):
                raise InputError(key, numbers, "shares from 0 to 1")
        elif self.drives == "super_kernel":
            if not set(numbers) <= {0, 1}:
                raise InputError(key, numbers, "0 (no scopes) and 1 (the base's scopes)")
        elif self.drives == "drafts":
            if not set(numbers) <= set(range(MOST_DRAFTS + 1)):
                raise InputError(key, numbers, f"whole numbers from 0 to {MOST_DRAFTS}")
        elif self.drives == "transport":
            if not set(self.levels) <= set(get_args(Transport)):
                raise InputError(key, list(self.levels), ", ".join(get_args(Transport)))
        elif not all(level >= 1 and level == int(level) for level in numbers):
            raise InputError(key, numbers, "whole numbers from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceConfig:
    """The knobs by name; the first varies slowest."""

    knobs: Mapping[str, Knob]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSpace(SpaceConfig):
    """A space, and what works on it: processes of this machine or the nodes of a Ray cluster."""

    executor: Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChoice:
    """Overrides of the base schedule's workload; ``None`` keeps its value."""

    global_batch: int | None
    kv_tokens: int | None
    next_n: int | None
    acceptance: float | None
    expert_load: ExpertLoad | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentChoice:
    """Overrides of the base schedule's deployment; ``dies`` lists totals to search among."""

    dies: tuple[int, ...] | None
    quantisation: Quantisation | None
    graph_mode: GraphMode | None
    attention_tp: int | None
    o_proj_tp: int | None
    dense_tp: int | None
    kvp: int | None
    lm_head_tp: int | None
    embed_tp: int | None
    transport: Transport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Everything that ``python -m twin.search`` takes; see ``--help``."""

    scenario: Kind
    model: str
    base: str | None
    bases: Mapping[Kind, Mapping[str, str]]
    hardware: HardwareChoice
    workload: WorkloadChoice
    deployment: DeploymentChoice
    search: SearchedSpace
    workers: int | None
    budget: int
    top: int
    draws: int
    tie_tolerance: float
    seed: int
    seal: bool

    def check(self) -> None:
        """Refuse numbers out of range, before anything is simulated.

        Raises:
            InputError: names the key.
        """
        for name, knob in self.search.knobs.items():
            knob.check(name)
        rules: tuple[tuple[str, float | None, float], ...] = (
            ("workers", self.workers, 1),
            ("budget", self.budget, 1),
            ("top", self.top, 1),
            ("draws", self.draws, 0),
            ("tie_tolerance", self.tie_tolerance, 0),
            ("seed", self.seed, 0),
            *(("deployment.dies", dies, 1) for dies in self.deployment.dies or ()),
        )
        for key, value, least in rules:
            if value is not None and value < least:
                raise InputError(key, value, f"a number from {least}")
        if self.deployment.transport is not None and self.scenario != "afd":
            raise InputError("deployment.transport", self.deployment.transport, "null without AFD")
        if self.deployment.dies == ():
            raise InputError("deployment.dies", [], "at least one number of dies")

    def base_name(self, kind: Kind) -> str:
        """The shipped schedule (or file) that a search of ``kind`` starts from.

        Raises:
            InputError: the configuration names none for this model.
        """
        if self.base is not None and kind == self.scenario:
            return self.base
        by_model = self.bases.get(kind, {})
        name = by_model.get(self.model, by_model.get("default"))
        if name is None:
            raise InputError(f"bases.{kind}", dict(by_model), f"a base for {self.model} or default")
        return name
