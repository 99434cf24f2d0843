"""Prefill schedules over real processes against transformers: logits, tokens, records."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from layouts import LAYOUTS, SPECS, LayoutReport
from oracle import TOLERANCE, error, prompts_of
from prefills import (
    ForgetsZeroExperts,
    KeepsRowsHome,
    PrefillJob,
    SkipsTheWayBack,
    prefill_of,
    run_prefill,
)
from rank_pool import RankPool

from runtime_npu.backends.reference import ReferenceBackend
from twin.schedule import Schedule

Runner = Callable[[PrefillJob], list[LayoutReport]]
Expected = tuple[list[list[int]], list[torch.Tensor]]
LENGTHS = (5, 1, 17, 8, 3, 2, 12)
"""No whole number of sequences for each group, of mixed lengths: padding everywhere."""
STEPS = 4
COLOCATED = [
    name for name, deployment in LAYOUTS.items() if "kvp" not in name and deployment.afd is None
]
QUICK = {
    "ep2, chunks": prefill_of(LAYOUTS["dp2"], chunk=9),
    "attention_tp, link": prefill_of(
        LAYOUTS["attention_tp2 of 4, all"], chunk=11, micro_batches=2, link=True
    ),
    "recipe, link": prefill_of(LAYOUTS["recipe"], chunk=20, micro_batches=2, link=True),
}
ORDERS = {
    "all at once": (None, 1, False),
    "chunks": (6, 1, False),
    "micro-batches": (6, 2, False),
    "link": (7, 2, True),
}


@pytest.fixture
def run(rank_pool: RankPool) -> Runner:
    return lambda job: rank_pool(run_prefill, job, job.schedule.deployment.total_dies)


@pytest.fixture
def expected(decoded: Callable[..., Expected]) -> Callable[[str], Expected]:
    return lambda name: decoded(name, LENGTHS, STEPS)


def job_of(schedule: Schedule, name: str, folder: Path) -> PrefillJob:
    prompts = tuple(tuple(prompt) for prompt in prompts_of(SPECS[name], LENGTHS))
    return PrefillJob(schedule, SPECS[name], folder, prompts, STEPS)


def errors_of(reports: list[LayoutReport], logits: list[torch.Tensor]) -> list[float]:
    return [
        error(ours, logits[sequence][step])
        for report in reports
        for (sequence, step), ours in report.logits.items()
    ]


def check(reports: list[LayoutReport], tokens: list[list[int]], logits: list[torch.Tensor]) -> None:
    held = {key for report in reports for key in report.logits}
    assert held == {(sequence, step) for sequence in range(len(tokens)) for step in range(STEPS)}
    for report in reports:
        assert report.differences == []
        assert [list(row) for row in zip(*report.tokens, strict=True)] == tokens
    assert max(errors_of(reports, logits)) < TOLERANCE


@pytest.mark.parametrize("name", QUICK)
def test_ranks_compute_what_transformers_does(
    name: str,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str], Expected],
) -> None:
    check(run(job_of(QUICK[name], "split", checkpoint_of("split"))), *expected("split"))


@pytest.mark.nightly
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", COLOCATED)
def test_every_layout_and_order_computes_what_transformers_does(
    layout: str,
    order: str,
    model: str,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str], Expected],
) -> None:
    chunk, parts, link = ORDERS[order]
    groups = LAYOUTS[layout].attention.attention_groups
    schedule = prefill_of(
        LAYOUTS[layout],
        chunk=chunk,
        micro_batches=min(parts, -(-len(LENGTHS) // groups)),
        link=link,
    )
    check(run(job_of(schedule, model, checkpoint_of(model))), *expected(model))


@pytest.mark.parametrize("backend", [ForgetsZeroExperts, KeepsRowsHome])
def test_wrong_routing_changes_the_logits(
    backend: type[ReferenceBackend],
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str], Expected],
) -> None:
    job = replace(job_of(QUICK["ep2, chunks"], "split", checkpoint_of("split")), backend=backend)
    assert max(errors_of(run(job), expected("split")[1])) > 10 * TOLERANCE


def test_a_rank_that_skips_an_exchange_is_named(
    run: Runner, checkpoint_of: Callable[[str], Path]
) -> None:
    job = job_of(QUICK["ep2, chunks"], "split", checkpoint_of("split"))
    reports = run(replace(job, backend=SkipsTheWayBack))
    assert (
        "colocated 1: main[23]: issued layer.0.moe.chunk0.finalize_routing, "
        "the step graph has layer.0.moe.chunk0.back_all_to_all" in reports[1].differences
    )
