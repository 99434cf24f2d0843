"""The name space: names say the same ops in the same order as the step graph issues them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_models.hardware import load_hardware
from twin.deployment import RoleDeployment
from twin.graph.build import build_step_graph
from twin.graph.role_writer import layer_passes
from twin.models import load_model
from twin.names import (
    attention_ops,
    dense_ops,
    is_hccl_collective,
    layer_chains,
    main_ops,
    outside_ops,
    parse_name,
    parse_weight,
)
from twin.schedule import CoreLimit, Schedule, Stage
from twin.schedule_io import load_schedule
from twin.search.transport import with_transport
from twin.validate import validate_schedule

HARDWARE = load_hardware("a3-752t")


def with_sizes(schedule: Schedule, **sizes: int) -> Schedule:
    deployment = schedule.deployment
    side = "attention" if deployment.is_afd else "colocated"
    changed = {**deployment.roles, side: replace(deployment.attention, **sizes)}
    return replace(schedule, deployment=replace(deployment, roles=changed), prefetch=())


def without_drafts(schedule: Schedule) -> Schedule:
    return replace(schedule, workload=replace(schedule.workload, next_n=0, acceptance=0.0))


def variants() -> dict[str, Schedule]:
    colocated, afd = load_schedule("recipe_colocated"), load_schedule("recipe_afd")
    bf16 = replace(colocated.deployment, quantisation="bf16")
    serial = (Stage(name="all", streams={"main": CoreLimit()}),)
    return {
        "colocated": colocated,
        "afd": afd,
        "camp2p": with_transport(afd, "camp2p"),
        "direct": with_transport(afd, "direct"),
        "tiny": load_schedule("tiny_colocated"),
        "bf16": replace(colocated, deployment=bf16),
        "no_tp": with_sizes(colocated, o_proj_tp=1, dense_tp=1, lm_head_tp=1),
        "embed_tp": with_sizes(afd, embed_tp=8),
        "serial": replace(colocated, stages=serial, super_kernel=()),
        "attention_tp": with_sizes(colocated, attention_tp=8),
        "afd_attention_tp": with_sizes(afd, attention_tp=8),
        "kvp": load_schedule("recipe_long_context"),
        "kvp_alone": with_sizes(load_schedule("recipe_long_context"), dense_tp=1, lm_head_tp=1),
        "afd_kvp": with_sizes(without_drafts(afd), kvp=8),
    }


@pytest.mark.parametrize(("name", "schedule"), variants().items(), ids=list(variants()))
def test_the_step_graph_issues_the_named_ops_in_the_named_order(
    name: str, schedule: Schedule
) -> None:
    model = load_model(schedule.model)
    validate_schedule(schedule, model, HARDWARE)
    graph = build_step_graph(schedule, model, HARDWARE, layers=1)
    moe_apart = any("moe" in stage.streams for stage in schedule.stages)
    for die in graph.dies:
        issued = [op.name for op in graph.ops if op.die == die.index and op.stream != "prefetch"]
        inside = [op.removeprefix("layer.0.") for op in issued if op.startswith("layer.0.")]
        chains = layer_chains(schedule.deployment, die.role, moe_apart=moe_apart)
        assert set(inside) == {op for chain in chains for op in chain}
        for chain in chains:
            assert [op for op in inside if op in chain] == list(chain)
        if die.role != "ffn":
            behind = outside_ops(schedule.deployment, schedule.workload.next_n)
            assert issued[-len(behind) :] == list(behind)


def test_a_split_kv_cache_merges_partial_results() -> None:
    ops = attention_ops("attention.1", RoleDeployment(dies=8, kvp=8, o_proj_tp=8))
    assert ops[4:] == tuple(
        f"attention.1.{op}"
        for op in ("all_to_all", "lse_all_to_all", "merge", "o_proj", "all_reduce", "post_norm")
    )


def test_attention_tp_exchanges_no_heads() -> None:
    ops = attention_ops("attention.0", RoleDeployment(dies=8, attention_tp=8, o_proj_tp=8))
    exchanges = ["attention.0.all_gather", "attention.0.reduce_scatter"]
    assert [op for op in ops if is_hccl_collective(op)] == exchanges
    assert ops[0] == "attention.0.input_norm"
    assert ops[2] == "attention.0.prolog"


def test_quantisation_and_tp_add_their_ops_to_a_dense_block() -> None:
    alone, split = RoleDeployment(dies=8), RoleDeployment(dies=8, dense_tp=8)
    assert dense_ops("dense.0", alone, "bf16") == tuple(
        f"dense.0.{op}" for op in ("gate_up", "swiglu", "down")
    )
    extra = set(dense_ops("dense.0", split, "w8a8")) - set(dense_ops("dense.0", alone, "bf16"))
    assert extra == {"dense.0.all_gather", "dense.0.quant", "dense.0.reduce_scatter"}


def test_dies_that_hold_the_same_rows_gather_none() -> None:
    split = RoleDeployment(dies=8, dense_tp=8, kvp=8, o_proj_tp=8)
    exchanges = [op for op in dense_ops("dense.0", split, "w8a8") if is_hccl_collective(op)]
    assert exchanges == ["dense.0.all_reduce"]
    alone = replace(split, dense_tp=1)
    assert not any(is_hccl_collective(op) for op in dense_ops("dense.0", alone, "w8a8"))


def test_dispatch_and_combine_are_no_hccl_collectives() -> None:
    afd = load_schedule("recipe_afd").deployment
    assert not any(is_hccl_collective(op) for op in main_ops(afd, "ffn"))
    assert is_hccl_collective("attention.0.all_to_all")


def test_next_is_split_off_a_weight() -> None:
    here, following = parse_weight("moe.w2"), parse_weight("next.moe.w2")
    assert (here.weight, here.is_next) == ("moe.w2", False)
    assert (following.weight, following.is_next) == ("moe.w2", True)


@pytest.mark.parametrize("micro_batches", [1, 12])
def test_full_names_come_apart_into_what_they_were_made_of(micro_batches: int) -> None:
    for run in layer_passes(11, micro_batches):
        name = parse_name(run.prefix + "attention.0.layer.1.mb2.q_a")
        assert (name.layer, name.micro_batch) == (run.layer, run.micro_batch)
        assert name.local == "attention.0.layer.1.mb2.q_a"


@pytest.mark.parametrize("name", ["lm_head", "mtp.0.attention.prolog", "layer.x.add", "a.layer.1"])
def test_names_outside_the_layers_stay_whole(name: str) -> None:
    found = parse_name(name)
    assert (found.layer, found.micro_batch, found.local) == (None, 0, name)
