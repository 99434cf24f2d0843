"""Limits of sizes and of the fused exchange: what breaks one is named by field and value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.deployment import Afd, Deployment, Role
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.names import main_ops
from twin.schedule import CoreLimit, MoePlan, Schedule
from twin.schedule_io import load_schedule
from twin.validate import validate_schedule

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")
COLOCATED = load_schedule("recipe_colocated")
AFD = load_schedule("recipe_afd")


def with_sizes(schedule: Schedule, role: Role, **sizes: int) -> Schedule:
    """``schedule`` with some sizes of one role changed."""
    roles = dict(schedule.deployment.roles)
    roles[role] = replace(roles[role], **sizes)
    return replace(schedule, deployment=replace(schedule.deployment, roles=roles))


def with_batch(schedule: Schedule, **changes: Any) -> Schedule:
    """``schedule`` with some numbers of its workload changed."""
    return replace(schedule, workload=replace(schedule.workload, **changes))


def refused(schedule: Schedule, model: ModelSpec = MODEL) -> InputError:
    with pytest.raises(InputError) as caught:
        validate_schedule(schedule, model, HARDWARE)
    error = caught.value
    assert error.field in str(error)
    assert repr(error.value) in str(error)
    assert error.allowed in str(error)
    return error


@pytest.mark.parametrize("name", ["o_proj_tp", "dense_tp", "lm_head_tp", "embed_tp"])
@pytest.mark.parametrize("size", [0, -8, 3, 256])
def test_groups_cut_the_dies_into_equal_parts(name: str, size: int) -> None:
    error = refused(with_sizes(COLOCATED, "colocated", **{name: size}))
    assert (error.field, error.value) == (f"deployment.roles.colocated.{name}", size)
    assert "divides the role's 128 dies" in error.allowed


@pytest.mark.parametrize(("schedule", "role"), [(COLOCATED, "colocated"), (AFD, "ffn")])
@pytest.mark.parametrize("dies", [0, -1])
def test_every_role_has_dies(schedule: Schedule, role: Role, dies: int) -> None:
    error = refused(with_sizes(schedule, role, dies=dies))
    assert (error.field, error.value) == (f"deployment.roles.{role}.dies", dies)
    assert "from 1" in error.allowed


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("attention_tp", "attention heads 64"),
        ("o_proj_tp", "o_proj width 8192"),
        ("dense_tp", "ffn_hidden_size 12288"),
        ("lm_head_tp", "vocab_size 131072"),
        ("embed_tp", "vocab_size 131072"),
    ],
)
def test_a_width_that_its_group_does_not_divide_is_named(name: str, what: str) -> None:
    plain = with_sizes(
        COLOCATED, "colocated", dies=130, ep=130, o_proj_tp=1, dense_tp=1, lm_head_tp=1
    )
    error = refused(with_sizes(plain, "colocated", **{name: 5}))
    assert (error.field, error.value) == (f"deployment.roles.colocated.{name}", 5)
    assert what in error.allowed


@pytest.mark.parametrize(
    "name", ["attention_tp", "o_proj_tp", "dense_tp", "kvp", "lm_head_tp", "embed_tp"]
)
def test_ffn_dies_hold_nothing_that_tp_could_cut(name: str) -> None:
    error = refused(with_sizes(AFD, "ffn", **{name: 2}))
    assert (error.field, error.value) == (f"deployment.roles.ffn.{name}", 2)
    assert error.allowed.startswith("1:")


@pytest.mark.parametrize(("dies", "redundant"), [(1, 0), (1024, 512)])
def test_dispatch_takes_2_to_768_expert_dies(dies: int, redundant: int) -> None:
    attention = 64 * max(1, dies // 64)
    schedule = with_sizes(with_sizes(AFD, "ffn", dies=dies, ep=dies), "attention", dies=attention)
    schedule = with_batch(schedule, global_batch=attention)
    error = refused(replace(schedule, moe=MoePlan(redundant_experts=redundant)))
    assert (error.field, error.value) == ("deployment.roles.ffn.ep", dies)
    assert "2 to 768" in error.allowed


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("moe_topk", 17, "at most 16"),
        ("hidden_size", 1023, "1024 to 8192"),
        ("hidden_size", 8193, "1024 to 8192"),
    ],
)
def test_models_that_dispatch_cannot_exchange_run_on_one_die_only(
    field: str, value: int, allowed: str
) -> None:
    fields: dict[str, Any] = {field: value}
    model = replace(MODEL, **fields)
    error = refused(COLOCATED, model)
    assert (error.field, error.value) == (f"model.{field}", value)
    assert allowed in error.allowed
    alone = with_sizes(COLOCATED, "colocated", dies=1, ep=1, o_proj_tp=1, dense_tp=1, lm_head_tp=1)
    collectives = ("all_gather", "reduce_scatter", "all_to_all")
    kept = tuple(p for p in alone.prefetch if not p.after.endswith(collectives))
    validate_schedule(replace(alone, prefetch=kept), model, HARDWARE)


@pytest.mark.parametrize(("micro_batches", "most"), [(1, 170), (2, 340)])
def test_a_moe_die_takes_512_rows_of_a_micro_batch(micro_batches: int, most: int) -> None:
    """Three rows a sequence: 170 sequences bring 510 rows, 171 bring 513."""
    afd = Afd(micro_batches=micro_batches)
    schedule = replace(AFD, deployment=replace(AFD.deployment, afd=afd))
    validate_schedule(with_batch(schedule, global_batch=64 * most), MODEL, HARDWARE)
    error = refused(with_batch(schedule, global_batch=64 * most + 1))
    assert (error.field, error.value) == ("workload.global_batch", 64 * most + 1)
    assert "here 513" in error.allowed


def test_an_ffn_die_takes_the_rows_of_all_attention_dies_that_it_serves() -> None:
    schedule = with_sizes(AFD, "ffn", dies=32, ep=32)
    validate_schedule(with_batch(schedule, global_batch=64 * 85), MODEL, HARDWARE)
    error = refused(with_batch(schedule, global_batch=64 * 86))
    assert (error.field, error.value) == ("workload.global_batch", 64 * 86)
    assert "here 516" in error.allowed


def test_attention_tp_dies_share_their_sequences() -> None:
    schedule = with_sizes(COLOCATED, "colocated", attention_tp=8)
    validate_schedule(with_batch(schedule, global_batch=16), MODEL, HARDWARE)
    error = refused(with_batch(schedule, global_batch=15))
    assert (error.field, error.value) == ("workload.global_batch", 15)
    assert "each of the 16 attention groups" in error.allowed


@pytest.mark.parametrize("width", [4, 132, 520])
def test_partial_results_are_merged_in_widths_of_the_merge_op(width: int) -> None:
    long = load_schedule("recipe_long_context")
    with pytest.raises(InputError) as caught:
        validate_schedule(long, replace(MODEL, v_head_dim=width), HARDWARE)
    assert (caught.value.field, caught.value.value) == ("model.v_head_dim", width)
    validate_schedule(long, replace(MODEL, v_head_dim=512), HARDWARE)


def test_the_last_position_of_the_model_may_be_used() -> None:
    most = MODEL.max_position_embeddings - 3
    validate_schedule(with_batch(COLOCATED, kv_tokens=most), MODEL, HARDWARE)
    error = refused(with_batch(COLOCATED, kv_tokens=most + 1))
    assert (error.field, error.value) == ("workload.kv_tokens", most + 1)
    assert str(most) in error.allowed


@pytest.mark.parametrize("name", ["global_batch", "kv_tokens"])
def test_an_empty_workload_is_refused(name: str) -> None:
    error = refused(with_batch(COLOCATED, **{name: 0}))
    assert (error.field, error.value) == (f"workload.{name}", 0)


@pytest.mark.parametrize("next_n", [-1, 3])
def test_zero_to_two_drafts(next_n: int) -> None:
    error = refused(with_batch(COLOCATED, next_n=next_n))
    assert (error.field, error.value) == ("workload.next_n", next_n)
    assert "0 to 2" in error.allowed


@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_every_role_has_a_stage(role: Role) -> None:
    left = tuple(stage for stage in AFD.stages if stage.role != role)
    error = refused(replace(AFD, stages=left, super_kernel=()))
    assert (error.field, error.value) == ("stages", [])
    assert f"role {role}" in error.allowed


@pytest.mark.parametrize(
    "roles", [(), ("attention",), ("ffn",), ("colocated", "ffn"), ("attention", "colocated")]
)
def test_roles_are_one_colocated_or_attention_and_ffn(roles: tuple[Role, ...]) -> None:
    size = COLOCATED.deployment.roles["colocated"]
    deployment: Deployment = replace(COLOCATED.deployment, roles=dict.fromkeys(roles, size))
    error = refused(replace(COLOCATED, deployment=deployment))
    assert (error.field, error.value) == ("deployment.roles", sorted(roles))
    assert "colocated alone" in error.allowed


@pytest.mark.parametrize("scope", ["attention.link", "ffn.moe", "prefetch", "", "attention."])
def test_scopes_are_streams_that_launch_kernels(scope: str) -> None:
    error = refused(replace(AFD, super_kernel=(scope,)))
    assert (error.field, error.value) == ("super_kernel[0]", scope)
    assert "attention.main" in error.allowed


def test_the_edges_of_dispatch_are_allowed() -> None:
    two = with_sizes(with_sizes(AFD, "ffn", dies=2, ep=2), "attention", dies=16)
    most = with_sizes(with_sizes(AFD, "ffn", dies=768, ep=768), "attention", dies=768)
    most = replace(with_batch(most, global_batch=768), moe=MoePlan(redundant_experts=256))
    for schedule in (with_batch(two, global_batch=16), most):
        validate_schedule(schedule, MODEL, HARDWARE)
    for hidden_size in (1024, 8192):
        model = replace(MODEL, hidden_size=hidden_size, moe_topk=16)
        validate_schedule(COLOCATED, model, HARDWARE)


def test_exactly_512_rows_are_allowed() -> None:
    full = with_batch(COLOCATED, global_batch=128 * 512, next_n=0, acceptance=0.0)
    validate_schedule(full, MODEL, HARDWARE)
    assert "here 513" in refused(with_batch(full, global_batch=128 * 512 + 1)).allowed


def test_one_sequence_with_one_cached_token_is_a_workload() -> None:
    alone = load_schedule("tiny_colocated")
    least = with_batch(alone, global_batch=1, kv_tokens=1)
    validate_schedule(least, load_model("tiny"), HARDWARE)


@pytest.mark.parametrize(("aic", "aiv"), [(1, 16), (24, 48)])
def test_a_stream_may_have_from_one_core_to_the_whole_die(aic: int, aiv: int) -> None:
    """16 vector cores are the least that HCCL collectives take."""
    limit = CoreLimit(aic=aic, aiv=aiv)
    first = replace(COLOCATED.stages[0], streams={"main": limit})
    validate_schedule(replace(COLOCATED, stages=(first, COLOCATED.stages[1])), MODEL, HARDWARE)


def test_streams_without_collectives_may_have_a_single_vector_core() -> None:
    last = COLOCATED.stages[1]
    streams = {**last.streams, "moe": CoreLimit(aic=1, aiv=1)}
    stages = (COLOCATED.stages[0], replace(last, streams=streams))
    validate_schedule(replace(COLOCATED, stages=stages), MODEL, HARDWARE)


def test_the_first_stage_may_end_anywhere_before_the_last_op() -> None:
    first, last = COLOCATED.stages
    *ops, end = main_ops(COLOCATED.deployment, "colocated")
    for op in ops:
        stages = (replace(first, ends_after=op), last)
        validate_schedule(replace(COLOCATED, stages=stages), MODEL, HARDWARE)
    error = refused(replace(COLOCATED, stages=(replace(first, ends_after=end), last)))
    assert (error.field, error.value) == ("stages[0].ends_after", "add")
    assert ops[-1] in error.allowed


def test_three_stages_are_refused() -> None:
    first, last = COLOCATED.stages
    middle = replace(first, name="middle", ends_after="dense.0.down")
    error = refused(replace(COLOCATED, stages=(first, middle, last)))
    assert (error.field, error.value) == ("stages", ["stage1", "middle", "stage2"])
    assert "1 to 2" in error.allowed


def test_collectives_of_the_last_stage_are_counted_from_where_the_first_ends() -> None:
    """Behind the last collective nothing needs the vector cores of one."""
    first, last = COLOCATED.stages
    streams = {**last.streams, "main": CoreLimit(aic=16, aiv=1)}
    few = replace(last, streams=streams)
    late = (replace(first, ends_after="dense.1.reduce_scatter"), few)
    validate_schedule(replace(COLOCATED, stages=late), MODEL, HARDWARE)
    error = refused(replace(COLOCATED, stages=(replace(first, ends_after="dense.1.down"), few)))
    assert (error.field, error.value) == ("stages[1].streams.main.aiv", 1)
    assert "dense.1.reduce_scatter" in error.allowed
