"""Small clusters of the shipped schedules."""

from __future__ import annotations

from dataclasses import replace

from hardware_models.hardware import load_hardware
from twin.cluster.options import ClusterOptions, ExpertLoad, Jitter, KvLengths
from twin.cluster.run import ClusterSimulation
from twin.deployment import Role, RoleDeployment, Transport
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import with_dies, with_ratio
from twin.search.transport import with_transport

ALIKE = ClusterOptions(jitter=Jitter(matmul=0.0, other=0.0))
SKEWED = ClusterOptions(
    kv=KvLengths(low=512, high=8192), load=ExpertLoad(kind="zipf", exponent=0.7)
)


def colocated(dies: int = 16) -> Schedule:
    return with_batch(with_dies(load_schedule("recipe_colocated"), dies), 4 * dies)


def long_context(kv_tokens: int = 131071) -> Schedule:
    """32 dies in 4 groups that hold an eighth of each sequence a die."""
    schedule = load_schedule("recipe_long_context")
    return replace(schedule, workload=replace(schedule.workload, kv_tokens=kv_tokens))


def split_heads() -> Schedule:
    """16 dies in 2 groups that compute an eighth of the heads a die."""
    schedule = colocated(16)
    deployment = schedule.deployment
    roles: dict[Role, RoleDeployment] = {"colocated": replace(deployment.attention, attention_tp=8)}
    return replace(schedule, deployment=replace(deployment, roles=roles))


def afd(
    ratio: int, dies: int, micro_batches: int = 1, transport: Transport = "sdma_pairs"
) -> Schedule:
    recipe = with_transport(load_schedule("recipe_afd"), transport)
    schedule = with_ratio(with_dies(recipe, dies), ratio)
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
