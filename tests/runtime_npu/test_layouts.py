"""Every layout over real processes against transformers: logits, tokens, record."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from layouts import (
    LAYOUTS,
    SPECS,
    DropsAPart,
    ForgetsTheLse,
    KeepsArrivalOrder,
    LayoutJob,
    LayoutReport,
    SkipsACollective,
    SkipsTheWait,
    TakesFewRows,
    TakesOtherRows,
    WeighsFillers,
    legal,
    run_layout,
    schedule_of,
)
from oracle import TOLERANCE, error, prompts_of
from rank_pool import RankPool

from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.plan import prefill_order

Runner = Callable[[LayoutJob], list[LayoutReport]]
Expected = tuple[list[list[int]], list[torch.Tensor]]
LENGTHS = (5, 1, 17, 8, 3, 2, 30)
"""More sequences than groups, no whole number of them for each: padding everywhere."""
QUICK = (
    "attention_tp2 of 4, all",
    "kvp2 of 4, dense_tp2, vocabulary",
    "afd 2:1, 2 micro-batches",
    "direct 2:1",
)


@pytest.fixture
def run(rank_pool: RankPool) -> Runner:
    return lambda job: rank_pool(run_layout, job, job.deployment.total_dies)


@pytest.fixture
def expected(decoded: Callable[..., Expected]) -> Callable[[str, int], Expected]:
    return lambda name, steps: decoded(name, LENGTHS, steps)


def job_of(
    layout: str, name: str, folder: Path, steps: int, sequences: int = len(LENGTHS)
) -> LayoutJob:
    prompts = prompts_of(SPECS[name], LENGTHS)[:sequences]
    return LayoutJob(LAYOUTS[layout], SPECS[name], folder, tuple(tuple(p) for p in prompts), steps)


def check(reports: list[LayoutReport], tokens: list[list[int]], logits: list[torch.Tensor]) -> None:
    steps = len(tokens[0])
    held = {key for report in reports for key in report.logits}
    assert held == {(sequence, step) for sequence in range(len(tokens)) for step in range(steps)}
    for report in reports:
        assert report.differences == []
        assert [list(row) for row in zip(*report.tokens, strict=True)] == tokens
        for (sequence, step), ours in report.logits.items():
            assert error(ours, logits[sequence][step]) < TOLERANCE


@pytest.mark.parametrize("layout", QUICK)
def test_a_layout_computes_what_transformers_does(
    layout: str,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str, int], Expected],
) -> None:
    check(run(job_of(layout, "split", checkpoint_of("split"), 8)), *expected("split", 8))


@pytest.mark.nightly
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_computes_what_transformers_does(
    layout: str,
    name: str,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str, int], Expected],
) -> None:
    check(run(job_of(layout, name, checkpoint_of(name), 64)), *expected(name, 64))


@pytest.mark.parametrize(
    "layout",
    [
        "afd 2:1, 2 micro-batches",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name, deployment in LAYOUTS.items()
            if deployment.is_afd and name != "afd 2:1, 2 micro-batches"
        ),
    ],
)
def test_prompts_go_through_ffn_dies_in_chunks(
    layout: str,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str, int], Expected],
) -> None:
    """No chunk is larger than allowed, their sizes need not divide, and nothing changes."""
    chunk = 9 // LAYOUTS[layout].attention_ratio
    job = job_of(layout, "split", checkpoint_of("split"), 8)
    reports = run(replace(job, backend=TakesFewRows, chunk_tokens=chunk))
    check(reports, *expected("split", 8))


def test_prompts_of_a_decode_schedule_run_in_chunks_that_a_dispatch_takes() -> None:
    chunks = {
        name: prefill_order(schedule_of(LAYOUTS[name], 7)).chunk_tokens
        for name in ("ep4", "kvp2", "afd 1:1", "afd 2:1", "afd 3:1")
    }
    assert chunks == {"ep4": 512, "kvp2": 512, "afd 1:1": 512, "afd 2:1": 256, "afd 3:1": 170}


@pytest.mark.nightly
@pytest.mark.parametrize("sequences", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fewer_sequences_than_dies(
    layout: str,
    sequences: int,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str, int], Expected],
) -> None:
    tokens, logits = expected("split", 64)
    reports = run(job_of(layout, "split", checkpoint_of("split"), 10, sequences))
    short = [row[:10] for row in tokens[:sequences]]
    check(reports, short, [rows[:10] for rows in logits[:sequences]])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("attention", "ffn", "count"),
    [
        (2, None, 32),
        (3, None, 4),
        (4, None, 180),
        (1, 1, 2),
        (2, 1, 64),
        (3, 1, 8),
        (2, 2, 64),
    ],
)
def test_every_legal_deployment_of_four_dies(
    attention: int,
    ffn: int | None,
    count: int,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str, int], Expected],
) -> None:
    tokens, logits = expected("split", 8)
    deployments = legal(attention, ffn)
    job = job_of("one die", "split", checkpoint_of("split"), 4)
    for deployment in deployments:
        reports = run(replace(job, deployment=deployment))
        check(reports, [row[:4] for row in tokens], [rows[:4] for rows in logits])
    assert len(deployments) == count


WRONG_NUMBERS: list[tuple[type[ReferenceBackend], str]] = [
    (ForgetsTheLse, "kvp2"),
    (DropsAPart, "kvp2"),
    (DropsAPart, "dense_tp2"),
    (DropsAPart, "embed_tp2"),
    (TakesOtherRows, "attention_tp2"),
    (TakesOtherRows, "o_proj_tp2"),
    (KeepsArrivalOrder, "dp2"),
    (WeighsFillers, "direct 2:1"),
]


@pytest.mark.parametrize(("backend", "layout"), WRONG_NUMBERS)
def test_wrong_exchanges_change_the_logits(
    backend: type[ReferenceBackend],
    layout: str,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
    expected: Callable[[str, int], Expected],
) -> None:
    reports = run(replace(job_of(layout, "split", checkpoint_of("split"), 3), backend=backend))
    _, logits = expected("split", 8)
    errors = [
        error(ours, logits[sequence][step])
        for report in reports
        for (sequence, step), ours in report.logits.items()
        if step == 1
    ]
    assert max(errors) > 10 * TOLERANCE


WRONG_RECORDS: list[tuple[type[ReferenceBackend], str, str]] = [
    (
        SkipsACollective,
        "dense_tp2",
        "colocated 1: main[11]: issued layer.0.attention.1.input_norm, "
        "the step graph has layer.0.dense.0.reduce_scatter",
    ),
    (SkipsTheWait, "afd 2:1", "attention 1: layer.0.add: waits is ()"),
    (SkipsTheWait, "direct 2:1", "attention 1: layer.0.add: waits is ()"),
]


@pytest.mark.parametrize(("backend", "layout", "difference"), WRONG_RECORDS)
def test_a_rank_that_issues_otherwise_is_named(
    backend: type[ReferenceBackend],
    layout: str,
    difference: str,
    run: Runner,
    checkpoint_of: Callable[[str], Path],
) -> None:
    reports = run(replace(job_of(layout, "split", checkpoint_of("split"), 3), backend=backend))
    assert difference in "\n".join(line for report in reports for line in report.differences)
