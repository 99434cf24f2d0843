"""Configuration of a plan, as Hydra composes it from ``scenarios/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from hardware_models.errors import InputError
from twin.choices import HardwareChoice
from twin.search.config import (
    DeploymentChoice,
    Kind,
    SearchConfig,
    SearchedSpace,
    SpaceConfig,
    WorkloadChoice,
)

Scenario = Literal["capacity", "mtp", "afd_or_not"]
Layout = Literal["colocated", "afd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What users are promised: a time per output token of at most so many ms."""

    tpot_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """Everything that ``python -m twin.plan`` takes; see ``--help``."""

    scenario: Scenario
    nodes: tuple[int, ...]
    dies_per_node: int
    slo: Slo
    price_per_die_hour: float | None
    layouts: tuple[Layout, ...]
    batches: tuple[int, ...]
    model: str
    bases: Mapping[Kind, Mapping[str, str]]
    hardware: HardwareChoice
    workload: WorkloadChoice
    deployment: DeploymentChoice
    spaces: Mapping[Layout, SpaceConfig]
    workers: int | None
    draws: int
    seed: int

    def check(self) -> None:
        """Refuse numbers out of range and choices that the scenario makes by itself.

        Raises:
            InputError: names the key.
        """
        self._check_numbers()
        self._check_lists()
        self._check_fixed()
        for layout in self.layouts:
            if layout not in self.spaces:
                raise InputError(f"spaces.{layout}", None, "a space: a choice of group search")
            for name, knob in self.spaces[layout].knobs.items():
                key = f"spaces.{layout}.knobs.{name}"
                if knob.drives == "batch":
                    raise InputError(f"{key}.drives", "batch", "not what the scenario chooses")
                try:
                    knob.check(name)
                except InputError as error:
                    raise of_space(error, layout) from None

    def _check_numbers(self) -> None:
        rules: tuple[tuple[str, float | None, float], ...] = (
            ("dies_per_node", self.dies_per_node, 1),
            ("price_per_die_hour", self.price_per_die_hour, 0),
            ("workers", self.workers, 1),
            ("draws", self.draws, 2),
            ("seed", self.seed, 0),
            *(("nodes", nodes, 1) for nodes in self.nodes),
            *(("batches", batch, 1) for batch in self.batches),
            *(("deployment.dies", dies, 1) for dies in self.deployment.dies or ()),
        )
        for key, value, least in rules:
            if value is not None and value < least:
                raise InputError(key, value, f"a number from {least}")
        if self.slo.tpot_ms <= 0:
            raise InputError("slo.tpot_ms", self.slo.tpot_ms, "a number above 0")

    def _check_lists(self) -> None:
        lists: tuple[tuple[str, tuple[object, ...]], ...] = (
            ("nodes", self.nodes),
            ("batches", self.batches),
            ("layouts", self.layouts),
        )
        for key, values in lists:
            if not values or len(set(values)) < len(values):
                raise InputError(key, list(values), "at least one, each once")
        if self.scenario == "afd_or_not" and set(self.layouts) != {"colocated", "afd"}:
            raise InputError("layouts", list(self.layouts), "both: afd_or_not compares them")

    def _check_fixed(self) -> None:
        if self.workload.global_batch is not None:
            instead = "capacity finds it" if self.scenario == "capacity" else "batches lists it"
            raise InputError(
                "workload.global_batch", self.workload.global_batch, f"null: {instead}"
            )
        dies = self.deployment.dies
        if dies is not None and self.scenario == "capacity":
            raise InputError("deployment.dies", list(dies), "null: nodes says how many")
        if dies is not None and len(dies) != 1:
            raise InputError("deployment.dies", list(dies), "one number of dies, or null")

    def search(self, layout: Layout) -> SearchConfig:
        """A search of ``layout`` over its space, with these choices.

        A transport is one of AFD alone.
        """
        deployment = self.deployment
        if layout != "afd":
            deployment = replace(deployment, transport=None)
        return SearchConfig(
            scenario=layout,
            model=self.model,
            base=None,
            bases=self.bases,
            hardware=self.hardware,
            workload=self.workload,
            deployment=deployment,
            search=SearchedSpace(knobs=self.spaces[layout].knobs, executor="processes"),
            workers=self.workers,
            budget=1,
            top=1,
            draws=self.draws,
            tie_tolerance=0.0,
            seed=self.seed,
            seal=False,
        )


def of_space(error: InputError, layout: Layout) -> InputError:
    """A complaint about a knob, under the key that it has in a plan."""
    field = error.field.replace("search.", f"spaces.{layout}.", 1)
    return InputError(field, error.value, error.allowed)
