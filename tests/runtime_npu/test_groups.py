"""Who is in which group, where rows lie, and what a rank owns: no processes needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import LAYOUTS, SPECS, afd, colocated
from oracle import write

import runtime_npu.parallel.world as world_module
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.checkpoint import Checkpoint, load_weights
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.parallel.groups import GROUPS, Place, members, peers, place_of, rank_of
from runtime_npu.parallel.layout import Layout
from runtime_npu.parallel.shard import owned, shard_of
from runtime_npu.parallel.world import World
from runtime_npu.plan import PLAIN
from runtime_npu.weights import Contents, Stored, tensor_names
from twin.deployment import Deployment
from twin.weights import role_weights, weight_bytes

SPEC = SPECS["split"]


def test_groups_are_consecutive_dies_of_a_role() -> None:
    deployment = afd(4, 2, 1, o_proj_tp=2, dense_tp=4)
    assert [place_of(deployment, rank) for rank in (0, 3, 4, 5)] == [
        Place("attention", 0),
        Place("attention", 3),
        Place("ffn", 0),
        Place("ffn", 1),
    ]
    assert members(deployment, "o_proj_tp", 3) == (2, 3)
    assert members(deployment, "dense_tp", 2) == (0, 1, 2, 3)
    assert members(deployment, "ep", 4) == (4, 5)
    assert members(deployment, "ep", 1) == (1,)
    assert [peers(deployment, rank) for rank in range(6)] == [
        (4,),
        (4,),
        (5,),
        (5,),
        (0, 1),
        (2, 3),
    ]
    assert peers(colocated(2), 1) == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_of_a_kind_split_the_ranks(layout: str) -> None:
    deployment = LAYOUTS[layout]
    ranks = range(deployment.total_dies)
    assert [rank_of(deployment, place_of(deployment, rank)) for rank in ranks] == list(ranks)
    for name in GROUPS:
        groups = {members(deployment, name, rank) for rank in ranks}
        assert sorted(rank for group in groups for rank in group) == list(ranks)
    for rank in ranks:
        assert all(rank in peers(deployment, peer) for peer in peers(deployment, rank))


@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    phase=st.sampled_from(["prefill", "decode"]),
)
def test_every_row_lies_on_the_dies_that_it_must(
    layout: str, counts: list[int], phase: str
) -> None:
    deployment = LAYOUTS[layout]
    role = deployment.attention
    plan = Layout(deployment, len(counts))
    parts = plan.parts(phase, counts)  # type: ignore[arg-type]
    every = [(s, row) for s, count in enumerate(counts) for row in range(count)]
    dies = [plan.rows_on(die, parts) for die in range(role.dies)]
    # Equal heights everywhere, and no row of a group on other than kvp dies of it.
    assert {len(rows) for rows in dies} == {sum(part.height for part in parts)}
    seen = Counter(row for rows in dies for row in rows if row is not None)
    assert seen == Counter(dict.fromkeys(every, role.kvp))
    for die, rows in enumerate(dies):
        held = plan.held(plan.group_of(die))
        assert all(row is None or row[0] in held for row in rows)
    # Behind the gather of a group's rows, those of a sequence are side by side and in order.
    for group in range(role.attention_groups):
        for part in parts:
            real = [row for row in part.rows[group] if row is not None]
            assert real == sorted(real)
            assert real == list(part.rows[group][: len(real)])
            assert len(part.rows[group]) == part.height * role.attention_tp
    # No more padding than the fullest group makes.
    most = max(sum(counts[s] for s in plan.held(g)) for g in range(role.attention_groups))
    if len(parts) == 1:
        assert parts[0].height == max(1, math.ceil(most / role.attention_tp))


def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds of many ranks without their communicators."""
    monkeypatch.setattr(world_module, "_handles", lambda _: {})


def _model(deployment: Deployment, rank: int) -> LongcatFlash | FfnDie:
    world = World(deployment, rank)
    kind = FfnDie if world.place.role == "ffn" else LongcatFlash
    return kind(SPEC, ReferenceBackend(), PLAIN, world)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_keeps_the_bytes_that_the_twin_counts(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _alone(monkeypatch)
    deployment = LAYOUTS[layout]
    for rank in range(deployment.total_dies):
        model, role = _model(deployment, rank), place_of(deployment, rank).role
        held = sum(weight.nbytes for weight in model.parameters())
        assert held == sum(item.total_bytes for item in role_weights(SPEC, deployment, role))
        weights = ["moe.w13"] if role != "attention" else []
        weights += ["attention.1.q_b", "attention.0.o_proj", "dense.1.down"] * (role != "ffn")
        for weight in weights:
            found = model.layers[0].get_parameter(weight).nbytes
            assert found == weight_bytes(SPEC, deployment, weight)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_parts_of_all_ranks_make_each_tensor(layout: str) -> None:
    """Every element is owned, by as many ranks as hold copies of it."""
    deployment = LAYOUTS[layout]
    shards = [shard_of(SPEC, deployment, rank) for rank in range(deployment.total_dies)]
    for name, shape in tensor_names(SPEC, Contents()).required.items():
        if ".experts." in name:
            expert = int(name.split(".")[5])
            assert sum(expert in s.experts for s in shards if s.holds_experts) == 1
            continue
        owners = torch.zeros(shape, dtype=torch.int)
        is_router = ".router." in name
        for shard in shards:
            if shard.holds_router if is_router else shard.holds_attention:
                owners[owned(shard, SPEC, name)] += 1
        assert owners.min() == owners.max() > 0


def test_a_rank_reads_no_more_than_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _alone(monkeypatch)
    folder = write(tmp_path / "checkpoint", SPEC)
    read: list[int] = []
    original: Callable[..., Stored] = Checkpoint.read

    def counted(self: Checkpoint, *args: object) -> Stored:
        stored = original(self, *args)
        read.append(stored.values.nbytes)
        return stored

    monkeypatch.setattr(Checkpoint, "read", counted)
    for layout in ("attention_tp2 of 4, all", "afd 2:2, kvp2", "direct 2:2, kvp2"):
        for rank in range(4):
            read.clear()
            model = _model(LAYOUTS[layout], rank)
            with Checkpoint(folder, SPEC, None, Contents()) as checkpoint:
                load_weights(model, checkpoint, torch.float32)
            assert sum(read) == sum(weight.nbytes for weight in model.parameters())
