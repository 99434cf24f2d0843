"""Small clusters of the shipped schedules."""

from __future__ import annotations

from dataclasses import replace

from hardware_models.hardware import load_hardware
from twin.cluster.options import ClusterOptions, ExpertLoad, Jitter, KvLengths
from twin.cluster.run import ClusterSimulation
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.space import with_dies, with_ratio

ALIKE = ClusterOptions(jitter=Jitter(matmul=0.0, other=0.0))
SKEWED = ClusterOptions(
    kv=KvLengths(low=512, high=8192), load=ExpertLoad(kind="zipf", exponent=0.7)
)


def colocated(dies: int = 16) -> Schedule:
    return with_batch(with_dies(load_schedule("recipe_colocated"), dies), 4 * dies)


def afd(ratio: int, dies: int, micro_batches: int = 1) -> Schedule:
    schedule = with_ratio(load_schedule("recipe_afd"), ratio, dies)
    deployment = schedule.deployment
    assert deployment.afd is not None
    cut = replace(deployment.afd, micro_batches=micro_batches)
    schedule = replace(schedule, deployment=replace(deployment, afd=cut))
    return with_batch(schedule, 4 * deployment.attention.dies)


def with_batch(schedule: Schedule, requests: int) -> Schedule:
    return replace(schedule, workload=replace(schedule.workload, global_batch=requests))


def simulation(
    schedule: Schedule, options: ClusterOptions, layers: int | None = 3, **hardware: float
) -> ClusterSimulation:
    die = load_hardware(schedule.deployment.hardware).with_values(hardware)
    return ClusterSimulation(schedule, load_model(schedule.model), die, options, layers=layers)
