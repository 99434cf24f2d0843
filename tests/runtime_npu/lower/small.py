"""Small steps for lowering: every kind of op at two dies, and one change a knob."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import schedules

from twin.deployment import Afd, Deployment, GraphMode, RoleDeployment
from twin.models import load_model
from twin.schedule import CoreLimit, MoePlan, Prefetch, PrefillPlan, Schedule, Stage
from twin.search.transport import with_transport
from twin.workload import Workload

# Exchanges of experts have at least 1,024 columns, and prefill turns 64 elements of a head.
SMALL = replace(load_model("tiny"), name="small", hidden_size=1024, qk_rope_head_dim=64)

ROLE = RoleDeployment(dies=4, o_proj_tp=2, dense_tp=2, ep=4, lm_head_tp=2)
TWO_STREAMS = replace(
    schedules.TWO_STREAMS,
    model="small",
    workload=Workload(phase="decode", global_batch=8, kv_tokens=300, next_n=1, acceptance=0.5),
    deployment=replace(
        schedules.TWO_STREAMS.deployment, quantisation="w8a8", roles={"colocated": ROLE}
    ),
)


def with_streams(schedule: Schedule, **streams: CoreLimit) -> Schedule:
    first, second = schedule.stages
    return replace(schedule, stages=(first, replace(second, streams={**second.streams, **streams})))


def with_role(schedule: Schedule, **sizes: int) -> Schedule:
    deployment = schedule.deployment
    role = replace(deployment.roles["colocated"], **sizes)
    return replace(schedule, deployment=replace(deployment, roles={"colocated": role}))


def with_next_n(schedule: Schedule, next_n: int) -> Schedule:
    acceptance = min(schedule.workload.acceptance, next_n)
    workload = replace(schedule.workload, next_n=next_n, acceptance=acceptance)
    return replace(schedule, workload=workload)


def with_first_prefetch(schedule: Schedule, **changed: object) -> Schedule:
    first, *rest = schedule.prefetch
    return replace(schedule, prefetch=(replace(first, **changed), *rest))  # type: ignore[arg-type]


def knobs(base: Schedule) -> Mapping[str, Schedule]:
    """The base, and schedules that differ from it in one thing."""
    first, second = base.stages
    return {
        "base": base,
        "cube cores of main": with_streams(base, main=CoreLimit(aic=12, aiv=32)),
        "vector cores of main": with_streams(base, main=CoreLimit(aic=16, aiv=24)),
        "cores of moe": with_streams(base, moe=CoreLimit(aic=4, aiv=8)),
        "no limit on cube cores of moe": with_streams(
            base, main=CoreLimit(aiv=32), moe=CoreLimit(aiv=16)
        ),
        "name of the first stage": replace(
            base,
            stages=(replace(first, name="early"), second),
            super_kernel=tuple(scope.replace("first", "early") for scope in base.super_kernel),
        ),
        "limit in the first stage": replace(
            base, stages=(replace(first, streams={"main": CoreLimit(aic=20, aiv=40)}), second)
        ),
        "end of the first stage": replace(
            base, stages=(replace(first, ends_after="attention.0.input_norm"), second)
        ),
        "one stream": replace(
            base,
            stages=(Stage(name="all", streams={"main": CoreLimit()}),),
            super_kernel=(),
        ),
        "bytes of a prefetch": with_first_prefetch(base, bytes=1001),
        "weight of a prefetch": with_first_prefetch(base, weight="dense.1.down"),
        "place of a prefetch": with_first_prefetch(base, after="attention.0.post_norm"),
        "a prefetch less": replace(base, prefetch=base.prefetch[1:]),
        "batch": replace(base, workload=replace(base.workload, global_batch=16)),
        "KV length": replace(base, workload=replace(base.workload, kv_tokens=301)),
        "dies": with_role(base, dies=8, ep=8),
        "drafts": with_next_n(base, 2),
        "no drafts": with_next_n(base, 0),
        "quantisation": replace(base, deployment=replace(base.deployment, quantisation="bf16")),
        "o_proj_tp": with_role(base, o_proj_tp=4),
        "dense_tp": with_role(base, dense_tp=1),
        "lm_head_tp": with_role(base, lm_head_tp=4),
        "embed_tp": with_role(base, embed_tp=2),
        "attention_tp": with_role(base, attention_tp=2),
        "kvp": with_next_n(with_role(base, kvp=2), 0),
    }


SCOPES = {
    "a scope less": replace(TWO_STREAMS, super_kernel=("first", "second.main")),
    "no scope": replace(TWO_STREAMS, super_kernel=()),
}
CAPTURED = replace(
    TWO_STREAMS,
    deployment=replace(TWO_STREAMS.deployment, graph_mode="npugraph_ex"),
    super_kernel=(),
)


def afd(mode: GraphMode, *, ratio: int, micro_batches: int = 1) -> Schedule:
    """Attention and FFN on dies of their own, 4 and 4 / ``ratio``."""
    ffn = 4 // ratio
    return replace(
        TWO_STREAMS,
        deployment=Deployment(
            hardware="a3-752t",
            quantisation="w8a8",
            graph_mode=mode,
            roles={
                "attention": replace(ROLE, ep=1),
                "ffn": RoleDeployment(dies=ffn, ep=ffn),
            },
            afd=Afd(micro_batches=micro_batches),
        ),
        stages=(
            Stage(
                name="attention",
                role="attention",
                streams={"main": CoreLimit(), "link": CoreLimit()},
                join="add",
            ),
            Stage(name="ffn", role="ffn", streams={"main": CoreLimit(aic=20), "link": CoreLimit()}),
        ),
        prefetch=(
            Prefetch(weight="dense.0.gate_up", after="attention.0.o_proj", bytes=2000),
            Prefetch(role="ffn", weight="moe.w2", after="moe.router_matmul", bytes=3000),
            Prefetch(role="ffn", weight="next.moe.router", after="moe.gmm2", bytes=4000),
        ),
        super_kernel=("attention.main", "ffn.main") if mode == "ge_graph" else (),
    )


def direct(mode: GraphMode, *, ratio: int, micro_batches: int = 1, aiv: int = 8) -> Schedule:
    """The same over direct transfers on ``aiv`` vector cores of each role."""
    moved = with_transport(afd(mode, ratio=ratio, micro_batches=micro_batches), "direct")
    return replace(
        moved,
        stages=tuple(
            replace(stage, streams={**stage.streams, "link": CoreLimit(aiv=aiv)})
            for stage in moved.stages
        ),
    )


def roles(mode: GraphMode) -> Mapping[str, tuple[Schedule, int]]:
    """AFD steps of both roles: schedule and rank."""
    pairs, pieces = afd(mode, ratio=1), afd(mode, ratio=2, micro_batches=2)
    straight, dealt = direct(mode, ratio=1), direct(mode, ratio=2, micro_batches=2)
    return {
        "attention of direct": (straight, 1),
        "ffn of direct": (straight, 6),
        "attention of direct, 6 cores": (direct(mode, ratio=1, aiv=6), 1),
        "ffn of direct, 6 cores": (direct(mode, ratio=1, aiv=6), 6),
        "attention of direct 2:1 in two micro-batches": (dealt, 3),
        "ffn of direct 2:1 in two micro-batches": (dealt, 5),
        "attention of 1:1": (pairs, 1),
        "ffn of 1:1": (pairs, 6),
        "attention of 2:1 in two micro-batches": (pieces, 3),
        "ffn of 2:1 in two micro-batches": (pieces, 5),
    }


PREFILL = replace(
    TWO_STREAMS,
    workload=Workload(phase="prefill", global_batch=12, kv_tokens=24),
    deployment=replace(TWO_STREAMS.deployment, graph_mode="eager"),
    stages=(Stage(name="all", streams={"main": CoreLimit(), "link": CoreLimit()}),),
    prefetch=(),
    super_kernel=(),
    moe=MoePlan(chunk_tokens=40),
    prefill=PrefillPlan(micro_batches=2),
)
EAGER = replace(
    PREFILL,
    workload=TWO_STREAMS.workload,
    stages=(Stage(name="all", streams={"main": CoreLimit()}),),
    moe=MoePlan(),
    prefill=None,
)


def without_limits(schedule: Schedule) -> Schedule:
    """An AFD schedule without what eager streams cannot have."""
    stages = tuple(
        replace(stage, streams={"main": CoreLimit(), "link": CoreLimit()})
        for stage in schedule.stages
    )
    return replace(schedule, stages=stages, prefetch=())


def eager() -> Mapping[str, tuple[Schedule, int]]:
    """Prefill and decode without a graph: schedule and rank."""
    pairs = without_limits(afd("eager", ratio=2))
    straight = without_limits(direct("eager", ratio=2, micro_batches=2))
    (stage,) = PREFILL.stages
    alone = replace(stage, streams={"main": CoreLimit()})
    colocated = {
        "base": PREFILL,
        "prompt length": replace(PREFILL, workload=replace(PREFILL.workload, kv_tokens=25)),
        "one chunk": replace(PREFILL, moe=MoePlan()),
        "other chunks": replace(PREFILL, moe=MoePlan(chunk_tokens=30)),
        "one micro-batch": replace(PREFILL, prefill=PrefillPlan(micro_batches=1)),
        "three micro-batches": replace(PREFILL, prefill=PrefillPlan(micro_batches=3)),
        "no link stream": replace(PREFILL, stages=(alone,)),
        "quantisation": replace(
            PREFILL, deployment=replace(PREFILL.deployment, quantisation="bf16")
        ),
        **{
            name: with_role(PREFILL, **{name: size})
            for name, size in {
                "attention_tp": 2,
                "dense_tp": 1,
                "embed_tp": 2,
                "lm_head_tp": 4,
                "o_proj_tp": 1,
            }.items()
        },
        "decode": EAGER,
        "decode without drafts": with_next_n(EAGER, 0),
        "decode with kvp": with_next_n(with_role(EAGER, kvp=2), 0),
    }
    return {
        **{name: (schedule, 1) for name, schedule in colocated.items()},
        "attention of 2:1": (pairs, 3),
        "ffn of 2:1": (pairs, 5),
        "attention of direct 2:1": (straight, 3),
        "ffn of direct 2:1": (straight, 5),
    }


def bases(mode: GraphMode) -> tuple[Schedule, ...]:
    """Those that the steps of a mode differ from, most in one thing."""
    if mode == "eager":
        return (PREFILL, EAGER)
    return (TWO_STREAMS if mode == "ge_graph" else CAPTURED, afd(mode, ratio=1))


SERVED_BY_ONE_GRAPH = ("KV length",)
"""Steps that lower to what the base does: lengths are inputs."""

APART = {
    "format": "any other is refused",
    "model": "its sizes are those of the weights, which the full-size steps show",
    "workload.acceptance": "what is accepted is known behind the step",
    "workload.expert_load": "the router decides",
    "deployment.hardware": "its cores bound the limits, which are lowered as numbers",
    "stages[].role": "decided by the deployment: any other is refused",
    "stages[].join": "there is one: any other is refused",
    "prefetch[].role": "decided by the deployment: any other is refused",
    "moe.redundant_experts": "not executed: refused",
}
"""Fields that change nothing in what is lowered, and why."""


VARIANTS: Mapping[str, Mapping[str, tuple[Schedule, int]]] = {
    "eager": eager(),
    "ge_graph": {
        **{name: (each, 1) for name, each in {**knobs(TWO_STREAMS), **SCOPES}.items()},
        **roles("ge_graph"),
    },
    "npugraph_ex": {
        **{name: (each, 1) for name, each in knobs(CAPTURED).items()},
        **roles("npugraph_ex"),
    },
}
"""Schedule and rank of each small step, by graph mode."""
