"""Drafts and int8 in every layout over real processes: tokens, acceptance, record."""

from collections.abc import Callable
from pathlib import Path

import pytest
from layouts import LAYOUTS, SPECS
from mtp_layouts import job_of
from oracle import prompts_of
from rank_pool import RankPool

from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.rank import Job, Report, run_rank
from runtime_npu.weights import Contents

Runner = Callable[[Job], list[Report]]
SPEC = SPECS["split_small_vocabulary"]
PROMPTS = tuple(tuple(prompt) for prompt in prompts_of(SPEC, (5, 1, 9, 3, 2)))
QUICK = (
    "attention_tp2 of 4, all",
    "afd 2:1, attention_tp2, 2 micro-batches",
    "afd 2:1, 2 micro-batches",
    "recipe halves",
)
WITH_MTP = [name for name, deployment in LAYOUTS.items() if deployment.attention.kvp == 1]


def nightly_but(quick: tuple[str, ...]) -> list[object]:
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.nightly)
        for name in WITH_MTP
    ]


@pytest.fixture
def run(rank_pool: RankPool) -> Runner:
    return lambda job: rank_pool(run_rank, job, job.schedule.deployment.total_dies)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("layouts")
    made = {"fp32": base / "fp32", "w8a8": base / "w8a8"}
    make_checkpoint(made["fp32"], SPEC, 5, "float32", Contents(mtp=True))
    make_checkpoint(made["w8a8"], SPEC, 5, "bfloat16", Contents(mtp=True, int8=True))
    return made


@pytest.mark.parametrize("layout", nightly_but(QUICK))
def test_drafts_give_the_tokens_of_one_die_without_them(
    layout: str, run: Runner, folders: dict[str, Path]
) -> None:
    plain = run(job_of(LAYOUTS["one die"], SPEC, folders["fp32"], PROMPTS, 0))[0]
    alone = run(job_of(LAYOUTS["one die"], SPEC, folders["fp32"], PROMPTS, 2))[0]
    reports = run(job_of(LAYOUTS[layout], SPEC, folders["fp32"], PROMPTS, 2))
    assert sum(sum(step) for step in alone.accepted) > 0
    for report in reports:
        assert report.token_ids == plain.token_ids
        assert report.accepted == alone.accepted
        assert report.differences == ()


@pytest.mark.parametrize("layout", nightly_but(("recipe halves",)))
def test_int8_is_issued_as_planned(layout: str, run: Runner, folders: dict[str, Path]) -> None:
    """Split inner channels have scales of their own, so tokens may differ a little."""
    reports = run(job_of(LAYOUTS[layout], SPEC, folders["w8a8"], PROMPTS, 1, "w8a8"))
    assert [report.differences for report in reports] == [()] * len(reports)
    assert len({report.token_ids for report in reports}) == 1
    assert reports[0].ops
