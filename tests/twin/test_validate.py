"""Every rule of a schedule: what breaks it is named by field, value and what is allowed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import dump_schedule, load_schedule, parse_schedule, shipped_schedules
from twin.validate import validate_schedule

HARDWARE = load_hardware("a3-752t")
TEXTS = {name: dump_schedule(load_schedule(name)) for name in shipped_schedules()}
MAIN, MOE = "stages.1.streams.main", "stages.1.streams.moe"
ROLE, FFN, ATTENTION = (f"deployment.roles.{r}" for r in ("colocated", "ffn", "attention"))


def plain(name: str) -> Any:
    return yaml.safe_load(TEXTS[name])


def put(data: Any, path: str, value: object) -> None:
    """Set a value at a dotted path; ``...`` deletes it, ``+`` appends to a list."""
    *parents, last = path.split(".")
    for key in parents:
        data = data[int(key)] if isinstance(data, list) else data[key]
    if last == "+":
        data.append(value)
    elif value is ...:
        del data[last]
    else:
        data[int(last) if isinstance(data, list) else last] = value


def check(data: object) -> Schedule:
    schedule = parse_schedule(yaml.safe_dump(data, sort_keys=False), "my.yaml")
    validate_schedule(schedule, load_model(schedule.model), HARDWARE)
    return schedule


def broken(name: str, *changes: tuple[str, object]) -> InputError:
    data = plain(name)
    for path, value in changes:
        put(data, path, value)
    with pytest.raises(InputError) as caught:
        check(data)
    return caught.value


@pytest.mark.parametrize("name", shipped_schedules())
def test_shipped_schedules_obey_every_rule(name: str) -> None:
    check(plain(name))


RULES: list[tuple[str, str, object, str, str]] = [
    # schedule, path, value, field of the error, what is allowed
    ("recipe_colocated", "format", 2, "format", "1"),
    ("recipe_colocated", "workload.phase", "prefill", "deployment.graph_mode", "eager"),
    ("recipe_colocated", "workload.global_batch", 0, "workload.global_batch", "from 1"),
    ("recipe_colocated", "workload.global_batch", 100, "workload.global_batch", "128"),
    ("recipe_colocated", "workload.kv_tokens", 131072, "workload.kv_tokens", "131069"),
    ("recipe_colocated", "workload.next_n", 3, "workload.next_n", "0 to 2"),
    ("recipe_colocated", "workload.acceptance", 2.5, "workload.acceptance", "0 to next_n"),
    ("recipe_colocated", "workload.acceptance", -0.1, "workload.acceptance", "0 to next_n"),
    ("recipe_colocated", f"{ROLE}.o_proj_tp", 3, f"{ROLE}.o_proj_tp", "divides"),
    ("recipe_colocated", f"{ROLE}.dense_tp", 0, f"{ROLE}.dense_tp", "divides"),
    ("recipe_colocated", f"{ROLE}.attention_tp", 2, f"{ROLE}.o_proj_tp", "attention_tp"),
    ("recipe_colocated", f"{ROLE}.kvp", 2, f"{ROLE}.o_proj_tp", "kvp"),
    ("recipe_colocated", f"{ROLE}.ep", 64, f"{ROLE}.ep", "all 128 dies"),
    ("recipe_colocated", "moe.redundant_experts", 1, f"{ROLE}.ep", "513 experts"),
    ("recipe_colocated", "moe.redundant_experts", -128, "moe.redundant_experts", "from 0"),
    ("recipe_colocated", "moe.redundant_experts", 640, "moe.redundant_experts", "1024"),
    ("recipe_colocated", "moe.chunk_tokens", 1024, "moe.chunk_tokens", "prefill"),
    (
        "recipe_colocated",
        "stages.0.streams.main",
        {"aic": 25},
        "stages[0].streams.main.aic",
        "1 to 24",
    ),
    ("recipe_colocated", f"{MAIN}.aic", 0, "stages[1].streams.main.aic", "1 to 24"),
    ("recipe_colocated", f"{MAIN}.aiv", 49, "stages[1].streams.main.aiv", "1 to 48"),
    ("recipe_colocated", f"{MAIN}.aic", 17, "stages[1].streams", "at most 24"),
    ("recipe_colocated", f"{MOE}.aiv", 17, "stages[1].streams", "at most 48"),
    ("recipe_colocated", f"{MAIN}.aiv", 15, "stages[1].streams.main.aiv", "at least 16"),
    ("recipe_colocated", "stages.0.name", "stage2", "stages[0].name", "no other"),
    ("recipe_colocated", "stages.0.role", "ffn", "stages[0].role", "colocated"),
    ("recipe_colocated", "stages.0.ends_after", "moe.topk", "stages[0].ends_after", "main op"),
    ("recipe_colocated", "stages.1.ends_after", "add", "stages[1].ends_after", "null"),
    ("recipe_colocated", "stages.1.join", "dense.0.down", "stages[1].join", "add"),
    ("recipe_colocated", "stages.0.join", "add", "stages[0].join", "null"),
    ("recipe_colocated", "stages.0.streams.moe", {}, "stages[0].streams", "main"),
    ("recipe_colocated", "stages.1.streams.link", {}, "stages[1].streams", "main"),
    ("recipe_colocated", "deployment.graph_mode", "eager", "super_kernel", "ge_graph"),
    ("recipe_colocated", "deployment.graph_mode", "npugraph_ex", "super_kernel", "ge_graph"),
    ("recipe_colocated", "super_kernel.0", "stage2", "super_kernel[0]", "stage2.main"),
    ("recipe_colocated", "super_kernel.+", "stage1", "super_kernel[3]", "once"),
    ("recipe_colocated", "super_kernel.+", "stage1.main", "super_kernel[3]", "once"),
    ("recipe_colocated", "prefetch.0.bytes", 0, "prefetch[0].bytes", "above 0"),
    ("recipe_colocated", "prefetch.0.weight", "moe.w3", "prefetch[0].weight", "moe.w13"),
    ("recipe_colocated", "prefetch.0.weight", "next.lm_head", "prefetch[0].weight", "lm_head"),
    ("recipe_colocated", "prefetch.0.after", "moe.gmm3", "prefetch[0].after", "moe.gmm1"),
    ("recipe_colocated", "prefetch.0.after", "moe.topk", "prefetch[0].after", "next.moe.router"),
    ("recipe_colocated", "prefetch.0.role", "ffn", "prefetch[0].role", "colocated"),
    ("recipe_colocated", "prefetch.1.weight", "moe.router", "prefetch[1].weight", "once"),
    ("recipe_colocated", "deployment.afd", {"micro_batches": 1}, "deployment.afd", "attention"),
    ("recipe_afd", "deployment.afd", ..., "deployment.afd", "attention and ffn"),
    ("recipe_afd", "deployment.afd.micro_batches", 0, "deployment.afd.micro_batches", "1 to 4"),
    ("recipe_afd", "deployment.afd.micro_batches", 5, "deployment.afd.micro_batches", "1 to 4"),
    ("recipe_afd", f"{ATTENTION}.ep", 64, f"{ATTENTION}.ep", "ffn dies"),
    ("recipe_afd", f"{FFN}.dense_tp", 8, f"{FFN}.dense_tp", "attention dies"),
    ("recipe_afd", FFN, ..., "deployment.roles", "attention and ffn"),
    ("recipe_afd", "prefetch.0.weight", "moe.router", "prefetch[0].weight", "attention die"),
    ("recipe_afd", "stages.0.streams", {"main": {}}, "stages[0].streams", "link"),
    ("recipe_afd", "stages.0.join", None, "stages[0].join", "add"),
    ("recipe_afd", "stages.1.streams.link", {"aiv": 8}, "stages[1].streams.link.aiv", "SDMA"),
    ("tiny_colocated", "prefetch.0.after", "dense.0.all_gather", "prefetch[0].after", "dense.0"),
    ("recipe_colocated", "stages.0.name", "stage.1", "stages[0].name", "letters"),
    ("recipe_colocated", "stages.0.name", "", "stages[0].name", "letters"),
    ("recipe_colocated", "prefetch.0.weight", "next.moe.router.x", "prefetch[0].weight", "moe.w2"),
    ("recipe_colocated", "prefetch.0.after", "moe.router_matmul", "prefetch[0].after", "before"),
    ("recipe_colocated", "prefetch.0.after", "add", "prefetch[0].after", "moe.router_matmul"),
    (
        "recipe_colocated",
        "prefetch.+",
        {"weight": "next.moe.router", "after": "add", "bytes": 1},
        "prefetch[11].weight",
        "prefetch[0] brings it already",
    ),
    (
        "recipe_colocated",
        "prefetch.0",
        {"weight": "lm_head", "after": "mtp.1.sample", "bytes": 1},
        "prefetch[0].after",
        "before mtp.1.lm_head",
    ),
    (
        "recipe_colocated",
        "prefetch.0",
        {"weight": "mtp.dense.down", "after": "mtp.1.dense.down", "bytes": 1},
        "prefetch[0].after",
        "before mtp.1.dense.down",
    ),
    (
        "tiny_colocated",
        "prefetch.0",
        {"weight": "lm_head", "after": "lm_head", "bytes": 1},
        "prefetch[0].after",
        "before lm_head",
    ),
    (
        "tiny_colocated",
        "prefetch.0",
        {"weight": "mtp.eh_proj", "after": "add", "bytes": 1},
        "prefetch[0].weight",
        "lm_head",
    ),
    ("recipe_afd", "prefetch.10.after", "moe.gmm2", "prefetch[10].after", "before moe.gmm2"),
    ("recipe_afd", "stages.+", {"name": "x", "role": "ffn", "streams": {}}, "stages", "role ffn"),
]


@pytest.mark.parametrize(
    ("name", "path", "value", "field", "allowed"), RULES, ids=[f"{r[1]}={r[2]}" for r in RULES]
)
def test_a_broken_rule_names_field_value_and_what_is_allowed(
    name: str, path: str, value: object, field: str, allowed: str
) -> None:
    error = broken(name, (path, value))
    assert error.field == field
    assert allowed in error.allowed
    assert repr(error.value) in str(error)


def test_three_to_two_under_sdma_pairs_is_named_as_a_ratio() -> None:
    changes = ((f"{ATTENTION}.dies", 96), (f"{FFN}.dies", 64), ("workload.global_batch", 384))
    error = broken("recipe_afd", *changes)
    assert (error.field, error.value) == ("deployment.roles", "3:2")
    assert "sdma_pairs" in error.allowed


def test_o_proj_width_that_its_tp_does_not_divide_is_named() -> None:
    sizes = {"dies": 120, "o_proj_tp": 3, "dense_tp": 1, "lm_head_tp": 1, "ep": 120}
    error = broken("recipe_colocated", (ROLE, sizes))
    assert error.field == f"{ROLE}.o_proj_tp"
    assert "o_proj width 8192" in error.allowed


def test_too_many_rows_for_dispatch_are_refused() -> None:
    error = broken("recipe_colocated", ("workload.global_batch", 128 * 171))
    assert error.field == "workload.global_batch"
    assert "512 token rows" in error.allowed


def test_a_kv_cache_split_over_dies_binds_heads_drafts_and_o_proj() -> None:
    kvp = {"dies": 128, "o_proj_tp": 8, "dense_tp": 8, "ep": 128, "kvp": 8}
    assert broken("recipe_colocated", (ROLE, kvp)).field == "workload.next_n"
    no_drafts = ("workload.next_n", 0), ("workload.acceptance", 0.0)
    both = {**kvp, "attention_tp": 8}
    assert broken("recipe_colocated", (ROLE, both), *no_drafts).field == f"{ROLE}.attention_tp"
    many = {**kvp, "kvp": 128, "o_proj_tp": 128}
    error = broken("recipe_colocated", (ROLE, many), *no_drafts)
    assert (error.field, error.value) == (f"{ROLE}.kvp", 128)
    assert "64" in error.allowed
    parts = broken("recipe_colocated", (ROLE, {**many, "kvp": 32, "o_proj_tp": 32}), *no_drafts)
    assert (parts.field, parts.value) == (f"{ROLE}.kvp", 32)
    assert "at most 16 parts" in parts.allowed
    wide = broken("recipe_colocated", (ROLE, {**kvp, "dense_tp": 16}), *no_drafts)
    assert (wide.field, wide.value) == (f"{ROLE}.dense_tp", 16)
    assert "a divisor of kvp (8)" in wide.allowed
    # 16 groups of 8 dies: 8208 sequences bring 513 rows to each.
    rows = broken("recipe_colocated", (ROLE, kvp), *no_drafts, ("workload.global_batch", 8208))
    assert "512 token rows" in rows.allowed


def test_rows_of_split_heads_lie_scattered_before_dispatch() -> None:
    """16 groups of 8 dies: 1368 sequences of 3 rows are 513 on each die, 1365 fill 512."""
    data = plain("recipe_colocated")
    put(data, f"{ROLE}.attention_tp", 8)
    put(data, "workload.global_batch", 16 * 1365)
    check(data)
    tp = (f"{ROLE}.attention_tp", 8)
    error = broken("recipe_colocated", tp, ("workload.global_batch", 16 * 1366))
    assert "here 513" in error.allowed


def test_camp2p_has_rules_of_its_own() -> None:
    camp2p = ("deployment.afd.transport", "camp2p")
    three = broken("recipe_afd", camp2p, ("deployment.afd.micro_batches", 3))
    assert (three.field, three.value) == ("deployment.afd.micro_batches", 3)
    ratio = broken("recipe_afd", camp2p, (f"{ATTENTION}.dies", 96), ("workload.global_batch", 384))
    assert ratio.value == "3:2"


def test_only_a_stage_with_hccl_collectives_needs_their_vector_cores() -> None:
    few = ("stages.0.streams.main", {"aic": 4, "aiv": 8})
    assert broken("recipe_colocated", few).field == "stages[0].streams.main.aiv"
    early = ("stages.0.ends_after", "attention.0.uv")
    data = plain("recipe_colocated")
    for path, value in (few, early):
        put(data, path, value)
    check(data)


def test_on_one_stream_the_moe_runs_before_the_dense_branch() -> None:
    late = ("prefetch.0", {"weight": "moe.w13", "after": "dense.0.gate_up", "bytes": 1})
    data = plain("recipe_colocated")
    put(data, *late)
    check(data)  # beside each other on two streams: no order to break
    serial = [{"name": "all", "streams": {"main": {}}}]
    error = broken("recipe_colocated", late, ("stages", serial), ("super_kernel", ["all"]))
    assert error.field == "prefetch[0].after"
    assert "next.moe.w13" in error.allowed


def test_weights_behind_the_layers_may_be_prefetched_from_either_side() -> None:
    data = plain("recipe_colocated")
    put(data, "prefetch.0", {"weight": "lm_head", "after": "final_norm", "bytes": 1})
    put(data, "prefetch.1", {"weight": "mtp.eh_proj", "after": "add", "bytes": 1})
    put(data, "prefetch.2", {"weight": "mtp.dense.down", "after": "mtp.0.eh_proj", "bytes": 1})
    check(data)


def test_eager_takes_one_stream_no_limits_and_no_prefetch() -> None:
    eager: tuple[tuple[str, object], ...] = (
        ("deployment.graph_mode", "eager"),
        ("super_kernel", []),
    )
    assert broken("recipe_colocated", *eager).field == "stages[1].streams"
    serial = [{"name": "all", "streams": {"main": {"aic": 8}}}]
    assert broken("recipe_colocated", *eager, ("stages", serial)).field == "stages[0].streams.main"
    free = [{"name": "all", "streams": {"main": {}}}]
    assert broken("recipe_colocated", *eager, ("stages", free)).field == "prefetch"


def test_a_prefetch_above_its_weight_is_no_error() -> None:
    data = plain("recipe_colocated")
    put(data, "prefetch.0.bytes", 10**9)
    check(data)


@given(data=st.data(), name=st.sampled_from(shipped_schedules()))
def test_no_mutation_gives_anything_but_a_schedule_or_an_input_error(
    data: st.DataObject, name: str
) -> None:
    tree = copy.deepcopy(plain(name))
    for _ in range(data.draw(st.integers(1, 3))):
        node: Any = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans()):
                node = node[key]
                continue
            strange: st.SearchStrategy[Any] = st.sampled_from(
                [None, -1, 0, 3, 2**40, "x", "", [], {}, True, 1.5, "add"]
            )
            node[key] = data.draw(strange)
            break
    try:
        schedule = parse_schedule(yaml.safe_dump(tree), "fuzz.yaml")
        model = load_model(schedule.model)
        validate_schedule(schedule, model, HARDWARE)
    except InputError:
        return
    assert parse_schedule(dump_schedule(schedule), "again.yaml") == schedule


@pytest.mark.parametrize("name", shipped_schedules())
def test_round_trips_keep_equal_schedules_and_equal_bytes(name: str) -> None:
    schedule = load_schedule(name)
    text = dump_schedule(schedule)
    assert parse_schedule(text, "again.yaml") == schedule
    assert dump_schedule(parse_schedule(text, "again.yaml")) == text


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("global_batch: 512", "global_batch: many", "workload.global_batch"),
        ("global_batch: 512", "global_batch: 512.5", "workload.global_batch"),
        ("global_batch: 512", "global_batch: '512'", "workload.global_batch"),
        ("global_batch: 512", "globl_batch: 512", "globl_batch"),
        ("acceptance: 1.15", "acceptance: .nan", "workload.acceptance"),
        ("quantisation: w8a8", "quantisation: int4", "deployment.quantisation"),
        ("format: 1", "format: 1\nformat: 1", "format"),
        ("format: 1", "format: [", "line"),
    ],
)
def test_a_broken_file_is_named_with_its_field(old: str, new: str, named: str) -> None:
    text = TEXTS["recipe_colocated"]
    assert old in text
    with pytest.raises(InputError) as caught:
        parse_schedule(text.replace(old, new), "my.yaml")
    assert "my.yaml" in str(caught.value)
    assert named in str(caught.value)


def test_an_unknown_schedule_lists_the_shipped_ones() -> None:
    with pytest.raises(InputError, match="recipe_afd"):
        load_schedule("recipe_of_my_aunt")
