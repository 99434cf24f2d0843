"""Clusters: equal to the reference engine, equal to one die where all are alike, coupled."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from clusters import (
    ALIKE,
    SKEWED,
    afd,
    colocated,
    long_context,
    simulation,
    split_heads,
    with_batch,
)

from hardware_models.errors import DeadlockError
from hardware_models.hardware import load_hardware
from twin.cluster.build import group_size
from twin.cluster.options import ClusterOptions, ExpertLoad, Jitter
from twin.engine import reference
from twin.engine.compiled import simulate
from twin.engine.options import EngineOptions
from twin.graph.build import build_step_graph
from twin.models import load_model
from twin.schedule import CoreLimit, Schedule

OPTIONS = [
    EngineOptions(),
    EngineOptions(contention=False),
    EngineOptions(unfinished_prefetch="stops"),
]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
@pytest.mark.parametrize(
    ("schedule", "layers"),
    [
        (with_batch(colocated(16), 59), 3),
        (afd(1, 16), 3),
        (afd(3, 64), 2),
        (afd(3, 64, 2), 2),
        (afd(3, 64, 2, "camp2p"), 2),
        (afd(3, 64, 2, "direct"), 2),
        (with_batch(long_context(), 13), 2),
        (with_batch(split_heads(), 59), 2),
    ],
    ids=["colocated", "1:1", "3:1", "3:1 twice", "camp2p", "direct", "kvp", "attention_tp"],
)
def test_the_same_as_the_reference_engine(
    schedule: Schedule, layers: int, options: EngineOptions
) -> None:
    """All of it at once: KV lengths, expert load, jitter, real groups, AFD queues."""
    cluster = simulation(schedule, SKEWED, layers)
    sample = cluster.run(5, options)
    expected = reference.simulate(cluster.step_graph(), options)
    assert sample.step_us == expected.makespan_us
    for one, other in zip(expected.records, cluster.step.timeline().records, strict=True):
        assert other == one


@pytest.mark.parametrize(
    "schedule",
    [
        colocated(128),
        afd(1, 32),
        afd(3, 64),
        afd(3, 64, 2),
        afd(3, 64, 2, "camp2p"),
        afd(3, 64, 2, "direct"),
        long_context(kv_tokens=65536),
        split_heads(),
    ],
    ids=["colocated", "1:1", "3:1", "3:1 twice", "camp2p", "direct", "kvp", "attention_tp"],
)
def test_dies_that_are_alike_run_like_one(schedule: Schedule) -> None:
    cluster = simulation(schedule, ALIKE)
    hardware = load_hardware(schedule.deployment.hardware)
    graph = build_step_graph(schedule, load_model(schedule.model), hardware, layers=3)
    sample = cluster.run(0)
    timeline = simulate(graph)
    assert sample.step_us == timeline.makespan_us
    ends = np.array([record.end_us for record in timeline.records])
    assert (sample.records["end_us"] == ends).all()
    assert sample.records["peer_wait_us"].max() == 0.0


def test_groups_are_those_of_the_deployment() -> None:
    schedule = afd(3, 64)
    cluster = simulation(schedule, ALIKE).cluster
    graph = simulation(schedule, ALIKE).step_graph()
    members: dict[str, list[int]] = {}
    for op in graph.ops:
        if op.rendezvous is not None:
            copy, place = divmod(op.die, len(cluster.template.dies))
            members.setdefault(op.rendezvous, []).append(cluster.rank(copy, place)[1])
    wanted = {
        "layer.0.dense.0.all_gather": (8, 6),
        "layer.1.attention.1.all_to_all": (8, 6),
        "lm_head_all_gather": (16, 3),
        "layer.2.moe.dispatch": (16, 1),
        "layer.2.moe.combine": (16, 1),
    }
    for name, (size, count) in wanted.items():
        groups = [sorted(ranks) for key, ranks in members.items() if key.startswith(name + " ")]
        assert len(groups) == count, name
        for ranks in groups:
            assert ranks == list(range(ranks[0], ranks[0] + size))
            assert ranks[0] % size == 0
    assert all((op.rendezvous is not None) == (group_size(op) > 1) for op in graph.ops)


def test_dies_of_a_kvp_group_wait_for_the_one_that_holds_most() -> None:
    """Of 131071 tokens the last of 8 dies holds one less than the others."""
    cluster = simulation(long_context(), ALIKE)
    sample = cluster.run(0)
    assert sample.draw.kv_tokens.tolist() == ([16384] * 7 + [16383]) * 4
    index = {op.name: op.index for op in cluster.cluster.template.ops}
    waits = sample.records["peer_wait_us"][:, index["layer.1.attention.1.all_to_all"]]
    assert (waits[7::8] > 0.0).all()
    assert (np.delete(waits, np.s_[7::8]) == 0.0).all()


def test_a_slow_die_holds_up_its_group_and_in_the_end_everybody() -> None:
    """One die with a long KV cache: its TP group waits, and dispatch couples all others."""
    cluster = simulation(colocated(16), ALIKE)
    calm = cluster.run(0).records["end_us"].copy()
    draw = cluster.draw(0)
    template = cluster.cluster.template.ops
    slow = 11
    attention = next(op.index for op in template if op.name == "layer.1.attention.0.attention")
    heads = np.ones(len(draw.rows))
    heads[slow * len(template) + attention] = 3.0
    cluster.prepare(replace(draw, head_scale=heads))
    cluster.again()
    records = cluster.step.records.reshape(16, -1)
    index = {op.name: op.index for op in template}
    waits = records["peer_wait_us"][:, index["layer.1.attention.0.all_to_all"]]
    assert waits[slow] == 0.0
    assert (waits[8:16][np.arange(8) != slow - 8] > 100.0).all()
    assert (waits[:8] == 0.0).all()
    assert (records["peer_wait_us"][:8, index["layer.1.moe.dispatch"]] > 100.0).all()
    # An op beside those that wait may share with fewer and end earlier; what waits ends later.
    late = records["end_us"][:, index["layer.1.moe.dispatch"]]
    assert (late > calm.reshape(16, -1)[:, index["layer.1.moe.dispatch"]] + 100.0).all()
    assert records["end_us"].max() > calm.max() + 100.0


def test_more_skew_costs_more() -> None:
    loads = [ExpertLoad(kind="zipf", exponent=exponent) for exponent in (0.0, 0.5, 1.0)]
    steps = [
        simulation(colocated(128), ClusterOptions(load=load), 2).run(1).step_us for load in loads
    ]
    assert all(one < other for one, other in pairwise(steps))


def test_seeds_decide_everything() -> None:
    cluster = simulation(colocated(16), SKEWED)
    first = cluster.run(3).step_us
    assert cluster.run(4).step_us != first
    assert cluster.run(3).step_us == first
    assert simulation(colocated(16), SKEWED).run(3).step_us == first


def test_fitted_skew_gives_way_to_simulated_skew() -> None:
    def dispatch_us(options: ClusterOptions) -> float:
        cluster = simulation(colocated(16), options, ep_skew_us=50.0)
        template = cluster.cluster.template.ops
        at = next(op.index for op in template if op.name == "layer.0.moe.dispatch")
        return float(template[at].demand.latency_us)

    assert dispatch_us(ALIKE) - dispatch_us(ClusterOptions()) > 40.0


def test_heads_vary_around_their_mean() -> None:
    options = ClusterOptions(jitter=Jitter(matmul=0.02, other=0.1))
    cluster = simulation(colocated(64), options)
    scale = cluster.draw(0).head_scale.reshape(64, -1)
    kinds = np.array([op.kind for op in cluster.cluster.template.ops])
    for kind, cv in (("matmul", 0.02), ("quant_matmul", 0.02), ("row_op", 0.1)):
        some = scale[:, kinds == kind]
        assert some.mean() == pytest.approx(1.0, abs=0.01)
        assert some.std() == pytest.approx(cv, rel=0.1)


def test_collectives_that_need_each_others_cores_are_named() -> None:
    """Limits that overlap: a combine on one die may hold what a dense collective needs there."""
    base = colocated(16)
    overlapping = {"main": CoreLimit(aic=16, aiv=32), "moe": CoreLimit(aic=8, aiv=48)}
    stages = tuple(
        replace(stage, streams=overlapping) if stage.name == "stage2" else stage
        for stage in base.stages
    )
    wild = ClusterOptions(jitter=Jitter(matmul=1.0, other=1.0))
    cluster = simulation(replace(base, stages=stages), wild)

    def run_many() -> None:
        for seed in range(10):
            cluster.run(seed)

    with pytest.raises(DeadlockError) as caught:
        run_many()
    message = str(caught.value)
    assert "aiv cores held by" in message
    assert "to join rendezvous" in message
    # The recipe's own core limits keep such steps alive.
    legal = simulation(base, wild)
    assert all(legal.run(seed).step_us > 0 for seed in range(10))
