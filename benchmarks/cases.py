"""What the engines are measured on: steps of shipped schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hardware_models.hardware import load_hardware
from twin.cluster.options import ClusterOptions, ExpertLoad, Jitter, KvLengths
from twin.graph.build import build_step_graph
from twin.graph.step_graph import StepGraph
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import with_core_split, with_dies, with_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A shipped schedule, at another A:F ratio and with micro-batches where given."""

    name: str
    schedule: str
    ratio: int | None = None
    micro_batches: int = 1

    def load(self) -> Schedule:
        """The schedule of this case."""
        schedule = load_schedule(self.schedule)
        if self.ratio is None:
            return schedule
        schedule = with_ratio(schedule, self.ratio)
        deployment = schedule.deployment
        assert deployment.afd is not None
        afd = replace(deployment.afd, micro_batches=self.micro_batches)
        return replace(schedule, deployment=replace(deployment, afd=afd))

    def graph(self, layers: int | None) -> StepGraph:
        """The step, with so many layers (all of the model's where ``None``)."""
        schedule = self.load()
        hardware = load_hardware(schedule.deployment.hardware)
        return build_step_graph(schedule, load_model(schedule.model), hardware, layers=layers)


CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case(name="colocated", schedule="recipe_colocated"),
        Case(name="afd_1to1", schedule="recipe_afd", ratio=1),
        Case(name="afd_3to1", schedule="recipe_afd", ratio=3),
        Case(name="afd_3to1_two_batches", schedule="recipe_afd", ratio=3, micro_batches=2),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCase:
    """All dies of a deployment: a shipped schedule on so many dies, four requests each.

    With ``skew``, expert load is Zipf-distributed, KV lengths lie in a range, and heads vary;
    otherwise all dies are alike.
    """

    name: str
    schedule: str
    dies: int
    ratio: int | None = None
    skew: bool = True

    def load(self) -> Schedule:
        """The schedule on these dies; experts get copies where they do not divide."""
        schedule = with_dies(load_schedule(self.schedule), self.dies)
        if self.ratio is not None:
            schedule = with_ratio(schedule, self.ratio)
        ranks = schedule.deployment.moe.ep
        experts = load_model(schedule.model).n_routed_experts
        moe = replace(schedule.moe, redundant_experts=-experts % ranks)
        requests = 4 * schedule.deployment.attention.dies
        workload = replace(schedule.workload, global_batch=requests)
        return replace(schedule, moe=moe, workload=workload)

    @property
    def options(self) -> ClusterOptions:
        """What makes dies differ."""
        if not self.skew:
            return ClusterOptions(jitter=Jitter(matmul=0.0, other=0.0))
        return ClusterOptions(
            kv=KvLengths(low=1024, high=8192), load=ExpertLoad(kind="zipf", exponent=0.5)
        )


CLUSTERS: Mapping[str, ClusterCase] = {
    case.name: case
    for case in (
        ClusterCase(name="cluster_16", schedule="recipe_colocated", dies=16),
        ClusterCase(name="cluster_32", schedule="recipe_colocated", dies=32),
        ClusterCase(name="cluster_64", schedule="recipe_colocated", dies=64),
        ClusterCase(name="cluster_128", schedule="recipe_colocated", dies=128),
        ClusterCase(name="cluster_256", schedule="recipe_colocated", dies=256),
        ClusterCase(name="cluster_512", schedule="recipe_colocated", dies=512),
        ClusterCase(name="cluster_128_alike", schedule="recipe_colocated", dies=128, skew=False),
        ClusterCase(name="cluster_768_afd_1to1", schedule="recipe_afd", dies=768, ratio=1),
        ClusterCase(name="cluster_768_afd_3to1", schedule="recipe_afd", dies=768, ratio=3),
    )
}
SIMPY_DIES = 16
"""Clusters up to this size are run on simpy too: it takes tens of milliseconds a die."""


def search_knobs(schedule: Schedule) -> dict[str, list[Schedule]]:
    """Knobs of a colocated search: the core split, and the sizes of three groups of prefetches."""
    hardware = load_hardware(schedule.deployment.hardware)
    groups = {
        "dense": ("dense.0.gate_up", "dense.0.down", "dense.1.gate_up", "dense.1.down"),
        "second": ("attention.1.q_a", "attention.1.q_b", "attention.1.kv_a"),
        "next": ("next.attention.0.q_a", "next.attention.0.q_b", "next.attention.0.kv_a"),
    }
    knobs = {
        "cores": [with_core_split(schedule, "stage2", aic, hardware) for aic in range(8, 23, 2)]
    }
    for name, weights in groups.items():
        knobs[name] = [
            _with_share(schedule, weights, share) for share in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
        ]
    return knobs


def _with_share(schedule: Schedule, weights: tuple[str, ...], share: float) -> Schedule:
    kept = tuple(p for p in schedule.prefetch if share > 0.0 or p.weight not in weights)
    sized = (replace(p, bytes=round(p.bytes * share)) if p.weight in weights else p for p in kept)
    return replace(schedule, prefetch=tuple(sized))
