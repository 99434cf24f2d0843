"""What the twin says about prefill: TTFT, throughput, memory, published throughput beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.deployment import Role, RoleDeployment
from twin.entry import entry_of
from twin.evaluate import evaluate
from twin.memory import memory_ledger
from twin.models import load_model
from twin.schedule import CoreLimit, PrefillPlan, Schedule, Stage
from twin.schedule_io import dump_schedule, load_schedule, parse_schedule
from twin.search.feasible import rejection
from twin.uncertainty import draw_hardware, latency_spread
from twin.validate import validate_schedule

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
PREFILL = load_schedule("recipe_prefill")
GIB = 1024**3


def with_sizes(**sizes: int) -> Schedule:
    roles: dict[Role, RoleDeployment] = {
        "colocated": replace(PREFILL.deployment.attention, **sizes)
    }
    return replace(PREFILL, deployment=replace(PREFILL.deployment, roles=roles))


def with_workload(global_batch: int, kv_tokens: int, chunk: int | None = 4096) -> Schedule:
    workload = replace(PREFILL.workload, global_batch=global_batch, kv_tokens=kv_tokens)
    return replace(PREFILL, workload=workload, moe=replace(PREFILL.moe, chunk_tokens=chunk))


def test_the_first_token_comes_at_the_end_of_the_step() -> None:
    result = evaluate(PREFILL, MODEL, HARDWARE)
    entry = entry_of("prefill", result, "recipe_prefill.yaml")
    assert entry["ttft_ms"] == entry["step_ms"]
    assert "tpot_ms" not in entry
    assert result.tokens_per_s_per_die == pytest.approx(64 * 4096 / result.step_us * 1e6 / 32)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_spread_rests_on_the_same_step(micro_batches: int) -> None:
    schedule = replace(PREFILL, prefill=PrefillPlan(micro_batches=micro_batches))
    result = evaluate(schedule, MODEL, HARDWARE)
    alone = latency_spread(schedule, MODEL, [HARDWARE])
    assert alone.median_us == pytest.approx(result.latency_us, rel=1e-9)
    spread = latency_spread(schedule, MODEL, draw_hardware(HARDWARE, 8, seed=0))
    assert 0.7 * result.latency_us < spread.low_us < spread.high_us < 1.5 * result.latency_us


def test_throughput_lies_where_published_prefill_of_a_like_model_lies() -> None:
    """DeepSeek-R1 on the same dies: 5655 (default) and 6688 (balanced) tokens/s a chip.

    That model has 37 B active parameters, LongCat-Flash 27 B; per active parameter the twin
    should lie around them.  Second-hand figures of arXiv 2506.12708.
    """
    published = [rate * 37 for rate in (5655, 6688)]
    shipped, no_tp = (
        evaluate(schedule, MODEL, HARDWARE).tokens_per_s_per_chip * 27
        for schedule in (PREFILL, with_sizes(dense_tp=1, o_proj_tp=1))
    )
    assert 0.5 * published[0] < shipped < published[1]
    assert 0.8 * published[0] < no_tp < 1.2 * published[1]


def test_latents_of_the_prompts_and_the_fullest_moment_are_held() -> None:
    ledger = memory_ledger(PREFILL, MODEL, HARDWARE)["colocated"]
    assert ledger.kv_bytes == 2 * 4096 * 1152 * 56
    # Dense FFN at TP8: 65536 gathered rows; kept beside it three times 8192 rows.
    dense = 65536 * (2 * (2 * 6144 + 2 * 1536) + 1536 + 6144)
    assert ledger.activation_bytes == 3 * 8192 * 6144 * 2 + dense


def test_chunks_bound_memory_and_long_prompts_overflow_it_by_a_stated_amount() -> None:
    whole, cut = (
        memory_ledger(with_workload(64, 16384, chunk), MODEL, HARDWARE)["colocated"]
        for chunk in (None, 2048)
    )
    assert cut.activation_bytes < whole.activation_bytes
    reason = rejection(with_workload(64, 131072, None), MODEL, HARDWARE)
    assert reason is not None
    assert "GiB too much" in reason.detail


def test_split_heads_make_one_prompt_faster() -> None:
    """4 prompts of 32768 on 32 dies: alone on 4 of them, or each on a group of 8."""
    split = with_sizes(attention_tp=8)
    split = replace(split, workload=with_workload(4, 32768).workload)
    alone = with_workload(32, 32768)
    assert evaluate(split, MODEL, HARDWARE).latency_us < evaluate(alone, MODEL, HARDWARE).latency_us


def test_a_schedule_file_keeps_its_prefill_section() -> None:
    schedule = replace(PREFILL, prefill=PrefillPlan(micro_batches=2))
    text = dump_schedule(schedule)
    assert "prefill: {micro_batches: 2}" in text
    assert parse_schedule(text, "own.yaml") == schedule
    assert "\nprefill:" not in dump_schedule(load_schedule("recipe_colocated"))


DECODE = load_schedule("recipe_colocated")
AFD = load_schedule("recipe_afd")
LIMITED = Stage(name="prefill", streams={"main": CoreLimit(aic=8, aiv=16)})
REFUSED: dict[str, Schedule] = {
    "deployment.graph_mode": replace(
        PREFILL, deployment=replace(PREFILL.deployment, graph_mode="ge_graph")
    ),
    "deployment.roles.colocated.kvp": with_sizes(kvp=8),
    "workload.next_n": replace(PREFILL, workload=replace(PREFILL.workload, next_n=1)),
    "moe.chunk_tokens": with_workload(64, 4096, 0),
    "prefill.micro_batches": replace(PREFILL, prefill=PrefillPlan(micro_batches=3)),
    "prefill": replace(DECODE, prefill=PrefillPlan()),
    "deployment.roles": replace(AFD, workload=PREFILL.workload),
    "workload.kv_tokens": with_workload(64, 131073),
    "workload.global_batch": with_workload(16, 4096),
    "stages": replace(
        PREFILL,
        stages=(replace(PREFILL.stages[0], ends_after="dense.0.down"), LIMITED),
    ),
    "stages[0].streams.main": replace(PREFILL, stages=(LIMITED,)),
    "stages[0].streams": replace(
        PREFILL, stages=(replace(LIMITED, streams={"main": CoreLimit(), "moe": CoreLimit()}),)
    ),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_prefill_does_not_take_is_refused_by_name(field: str) -> None:
    with pytest.raises(InputError) as caught:
        validate_schedule(REFUSED[field], MODEL, HARDWARE)
    assert caught.value.field == field
