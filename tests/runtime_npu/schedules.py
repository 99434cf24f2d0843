"""Colocated schedules of one die for the tests, made without files."""

from __future__ import annotations

from dataclasses import replace

from twin.deployment import Deployment, RoleDeployment
from twin.schedule import CoreLimit, Prefetch, Schedule, Stage
from twin.workload import Workload

TWO_STREAMS = Schedule(
    format=1,
    model="tiny",
    workload=Workload(phase="decode", global_batch=2, kv_tokens=16),
    deployment=Deployment(
        hardware="a3-752t",
        quantisation="fp32",
        graph_mode="ge_graph",
        roles={"colocated": RoleDeployment(dies=1)},
    ),
    stages=(
        Stage(name="first", ends_after="attention.0.post_norm", streams={"main": CoreLimit()}),
        Stage(
            name="second",
            streams={"main": CoreLimit(aic=16, aiv=32), "moe": CoreLimit(aic=8, aiv=16)},
            join="add",
        ),
    ),
    prefetch=(
        Prefetch(weight="moe.router", after="attention.0.o_proj", bytes=1000),
        Prefetch(weight="dense.0.gate_up", after="attention.0.o_proj", bytes=2000),
        Prefetch(weight="moe.w2", after="moe.router_matmul", bytes=500),
        Prefetch(weight="attention.1.kv_a", after="dense.0.gate_up", bytes=10**9),
        Prefetch(weight="next.attention.0.q_a", after="dense.1.down", bytes=3000),
        Prefetch(weight="lm_head", after="dense.1.down", bytes=4000),
    ),
    super_kernel=("first", "second.main", "second.moe"),
)
SERIAL = replace(
    TWO_STREAMS,
    stages=(Stage(name="all", streams={"main": CoreLimit()}),),
    prefetch=(),
    super_kernel=(),
)
EAGER = replace(SERIAL, deployment=replace(SERIAL.deployment, graph_mode="eager"))
SERIAL_LIMITED = replace(
    SERIAL,
    stages=(
        Stage(
            name="one",
            ends_after="attention.0.post_norm",
            streams={"main": CoreLimit(aic=20, aiv=40)},
        ),
        Stage(
            name="two",
            ends_after="attention.1.uv",
            streams={"main": CoreLimit(aic=12)},
        ),
        Stage(name="three", streams={"main": CoreLimit(aiv=24)}),
    ),
    super_kernel=("two",),
)
MOE_FROM_THE_START = replace(
    SERIAL,
    stages=(
        Stage(
            name="all",
            streams={"main": CoreLimit(aic=12, aiv=24), "moe": CoreLimit(aic=12, aiv=24)},
            join="add",
        ),
    ),
    super_kernel=("all.moe",),
)
PREFETCHED_OUTSIDE = replace(
    SERIAL,
    prefetch=(
        Prefetch(weight="lm_head", after="final_norm", bytes=700),
        Prefetch(weight="next.moe.router", after="moe.combine", bytes=10**6),
    ),
)
SCHEDULES = {
    "prefetch outside the layers": PREFETCHED_OUTSIDE,
    "two streams": TWO_STREAMS,
    "serial": SERIAL,
    "eager": EAGER,
    "serial with limits": SERIAL_LIMITED,
    "one stage with a moe stream": MOE_FROM_THE_START,
}
