"""What is said about a cluster: waits, gaps, bounds, loads; from records that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from clusters import ALIKE, SKEWED, afd, colocated, simulation

from twin.cluster.streams import BoundCounter, GapCounter
from twin.cluster.summary import Spread, summarise
from twin.cluster.waits import WaitCounter
from twin.names import parse_name


def test_the_rank_and_the_op_that_made_the_others_wait() -> None:
    cluster = simulation(colocated(16), ALIKE)
    draw = cluster.draw(0)
    template = cluster.cluster.template.ops
    slow, name = 11, "layer.1.attention.0.attention"
    heads = np.ones(len(draw.rows))
    heads[slow * len(template) + next(op.index for op in template if op.name == name)] = 3.0
    cluster.prepare(replace(draw, head_scale=heads))
    cluster.again()
    records = cluster.step.records.reshape(16, -1)
    counter = WaitCounter(cluster.cluster)
    counter.add(records)
    waits = {wait.op: wait for wait in counter.waits()}
    wait = waits["attention.0.all_to_all"]
    lost_us = 2.0 * next(op for op in template if op.name == name).demand.head_us
    # Of 16 dies, the 7 others of its group wait, in one of the three layers.
    assert wait.longest_us == pytest.approx(lost_us, rel=1e-6)
    assert wait.wait_us == pytest.approx(lost_us * 7 / 16, rel=1e-6)
    at = [op.index for op in template if parse_name(op.name).local == "attention.0.all_to_all"]
    own = records["body_us"][:, at] - records["peer_wait_us"][:, at]
    assert wait.work_us == pytest.approx(own.sum() / 16, rel=1e-6)
    # Where nobody is late, rank 0 and rank 8 stand for their groups.
    late = _late_ranks(cluster, records, "layer.1.attention.0.all_to_all")
    assert late == ["colocated 0", "colocated 11"]
    only = WaitCounter(cluster.cluster)
    only._meetings = [m for m in only._meetings if m.name == "layer.1.attention.0.all_to_all"]
    only.add(records)
    (found,) = only.waits()
    assert "attention.0.attention" in _causes(only)
    assert found.slowest_share == 0.5


def _late_ranks(cluster, records, name: str) -> list[str]:
    op = next(op for op in cluster.cluster.template.ops if op.name == name)
    arrived = records["end_us"][:, op.index] - records["body_us"][:, op.index]
    return [
        cluster.cluster.rank_name(start + int(arrived[start : start + 8].argmax()), op.die)
        for start in (0, 8)
    ]


def _causes(counter: WaitCounter) -> set[str]:
    return set(counter._tallies["attention.0.all_to_all"].causes)


def test_waits_add_up_to_the_time_in_collectives() -> None:
    cluster = simulation(afd(3, 64), SKEWED)
    sample = cluster.run(2)
    counter = WaitCounter(cluster.cluster)
    counter.add(sample.records)
    dies = {"attention": 48, "ffn": 16}
    total = 0.0
    for wait in counter.waits():
        assert 0.0 <= wait.wait_us <= wait.longest_us * 3
        assert 0.0 < wait.slowest_share <= 1.0
        role = wait.slowest_rank.split()[0]
        assert int(wait.slowest_rank.split()[1]) < dies[role]
        total += (wait.wait_us + wait.work_us) * dies[role]
    spent = 0.0
    for op in cluster.cluster.template.ops:
        if cluster.cluster.flat.arrays.ops["group"][op.index] >= 0:
            records = sample.records[:, op.index]
            spent += float((records["end_us"] - records["start_us"]).sum())
    assert total == pytest.approx(spent)


def test_gaps_between_roles() -> None:
    cluster = simulation(afd(3, 64), SKEWED)
    samples = [cluster.run(seed).records.copy() for seed in (0, 1)]
    counter = GapCounter(cluster.cluster)
    for records in samples:
        counter.add(records)
    waits = counter.waits()
    assert [(wait.layer, wait.role) for wait in waits] == [
        (layer, role) for layer in range(3) for role in ("attention", "ffn")
    ]
    template = cluster.cluster.template.ops
    for wait in waits:
        name = "add" if wait.role == "attention" else "moe.cast"
        at = [op.index for op in template if op.name == f"layer.{wait.layer}.{name}"]
        values = np.stack([records["wait_us"][:, at] for records in samples])
        assert wait.wait_us == pytest.approx(values.mean())
        assert wait.longest_us == values.max() > 0.0
    assert GapCounter(simulation(colocated(16), ALIKE).cluster).waits() == []


def test_micro_batches_of_a_layer_add_up() -> None:
    cluster = simulation(afd(3, 64, 2), ALIKE)
    records = cluster.run(0).records
    counter = GapCounter(cluster.cluster)
    counter.add(records)
    template = cluster.cluster.template.ops
    at = [
        op.index for op in template if op.name.startswith("layer.1.") and op.name.endswith(".add")
    ]
    assert len(at) == 3 * 2
    (wait,) = [w for w in counter.waits() if (w.layer, w.role) == (1, "attention")]
    assert wait.wait_us == pytest.approx(records["wait_us"][:, at].sum() / (len(records) * 3))


def test_bounds_are_shares_of_the_main_streams_time() -> None:
    cluster = simulation(afd(3, 64), SKEWED)
    records = cluster.run(0).records
    counter = BoundCounter(cluster.cluster)
    counter.add(records)
    shares = counter.shares()
    assert set(shares) == {"attention", "ffn"}
    for role, parts in shares.items():
        assert sum(parts.values()) == pytest.approx(1.0)
        assert list(parts.values()) == sorted(parts.values(), reverse=True)
        main = [
            op.index for op in cluster.cluster.template.ops
            if op.stream == "main" and cluster.cluster.template.dies[op.die].role == role
        ]  # fmt: skip
        mine = records[:, main]
        total = mine["end_us"].sum() - mine["start_us"].sum() + mine["wait_us"].sum()
        assert parts["wait"] == pytest.approx(mine["wait_us"].sum() / total)
        assert parts["peer"] == pytest.approx(mine["peer_wait_us"].sum() / total)


def test_summary_of_seeds() -> None:
    cluster = simulation(afd(3, 64), SKEWED, 2)
    heard = []
    summary = summarise(cluster, [4, 5, 6], progress=lambda sample: heard.append(sample.seed))
    assert heard == [4, 5, 6] == list(summary.seeds)
    assert summary.steps_us == tuple(cluster.run(seed).step_us for seed in (4, 5, 6))
    assert summary.step_us == Spread.of(summary.steps_us)
    assert (summary.dies, summary.layers) == (64, 2)
    assert len(summary.load.tokens) == len(summary.load.active_experts) == 16
    per_layer = sum(summary.load.tokens)
    shapes = cluster.cluster.shapes
    assert per_layer == pytest.approx(shapes.rows(shapes.sequences) * 48 * 8)
    assert 1.0 < summary.load.imbalance < 16.0
    assert len(summary.kv_tokens) == 48


def test_balanced_loads_are_said_too() -> None:
    summary = summarise(simulation(colocated(128), ALIKE, 1), [0])
    assert set(summary.load.tokens) == {96.0}
    assert set(summary.load.active_experts) == {4.0}
    assert summary.load.imbalance == 1.0
    assert set(summary.kv_tokens) == {4608.0}


def test_spread() -> None:
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (spread.mean, spread.p50, spread.p90) == pytest.approx((3.0, 3.0, 4.6))
    assert spread.p99 == pytest.approx(4.96)
