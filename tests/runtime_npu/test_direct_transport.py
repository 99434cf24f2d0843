"""AFD's direct transport: fillers for zero experts, who holds what, and what a row is worth."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import LAYOUTS, SPECS
from mtp_layouts import job_of
from oracle import prompts_of
from rank_pool import RankPool

from hardware_models.hardware import load_hardware
from runtime_npu.backends.fillers import candidates, choices
from runtime_npu.parallel.groups import link_group, peers
from runtime_npu.plan import layer_plan, prefill_order
from runtime_npu.profile_folder import waits_for_others
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.rank import run_rank
from runtime_npu.weights import Contents
from twin.deployment import Afd
from twin.graph.build import build_step_graph
from twin.models import load_model
from twin.schedule import CoreLimit
from twin.schedule_io import load_schedule


@given(
    rows=st.integers(1, 9),
    topk=st.integers(1, 8),
    more=st.integers(0, 20),
    zeros=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_fillers_are_real_weigh_nothing_and_no_two_ids_of_a_row_are_alike(
    rows: int, topk: int, more: int, zeros: int, seed: int
) -> None:
    experts = 2 * topk + more
    generator = torch.Generator().manual_seed(seed)
    weights, ids = torch.rand(rows, experts + zeros, generator=generator).topk(topk)
    found = choices(ids, weights, experts, candidates(rows, topk, experts), torch.float32)
    is_real = ids < experts
    assert torch.equal(found.ids[is_real], ids[is_real])
    assert found.ids.min() >= 0
    assert found.ids.max() < experts
    assert all(len(set(row)) == topk for row in found.ids.tolist())
    assert torch.equal(found.weights, weights * is_real)
    torch.testing.assert_close(found.weights.sum(1) + found.zero_weight[:, 0], weights.sum(1))


def test_fillers_of_many_rows_reach_all_experts_alike() -> None:
    """All choices are zero experts: 48 rows x 4 fillers over 24 experts are 8 each."""
    ids, weights = torch.full((48, 4), 30), torch.ones(48, 4)
    found = choices(ids, weights, 24, candidates(48, 4, 24), torch.float32).ids
    assert torch.equal(torch.bincount(found.flatten(), minlength=24), torch.full((24,), 8))


def test_every_die_is_linked_with_all_of_the_other_role() -> None:
    deployment = LAYOUTS["direct 3:2, 2 micro-batches"]
    assert [peers(deployment, rank) for rank in range(5)] == [(3, 4)] * 3 + [(0, 1, 2)] * 2
    assert link_group(deployment, 1, 4) == (0, 1, 2, 3, 4)


def test_transfers_share_the_cores_of_their_role() -> None:
    """6 of the attention die's link stream; the default 8 of the FFN die's one."""
    schedule = load_schedule("cpu/afd_direct")
    assert layer_plan(schedule, "attention").links == (CoreLimit(aiv=6),)
    assert layer_plan(schedule, "ffn").links == (CoreLimit(aiv=8),)
    deployment = replace(schedule.deployment, afd=Afd(transport="sdma_pairs", micro_batches=2))
    assert layer_plan(replace(schedule, deployment=deployment), "ffn").links == ()


def test_prompts_bring_no_more_rows_than_a_micro_batch_of_decode() -> None:
    """8 sequences on 2 dies in 2 micro-batches."""
    assert prefill_order(load_schedule("cpu/afd_direct")).chunk_tokens == 2


def test_only_what_waits_for_other_dies_counts_as_an_exchange() -> None:
    schedule = load_schedule("cpu/afd_direct")
    hardware = load_hardware(schedule.deployment.hardware)
    ops = build_step_graph(schedule, load_model(schedule.model), hardware).ops
    assert {waits_for_others(op) for op in ops if ".afd." in op.name} == {True}
    assert {waits_for_others(op) for op in ops if ".afd." not in op.name} == {False}


@pytest.mark.parametrize(
    "layout",
    ["direct 2:1", pytest.param("direct 3:2, 2 micro-batches", marks=pytest.mark.nightly)],
)
def test_int8_copies_give_the_tokens_of_one_die(
    layout: str, rank_pool: RankPool, tmp_path: Path
) -> None:
    spec = SPECS["split"]
    make_checkpoint(tmp_path / "c", spec, 5, "bfloat16", Contents(int8=True))
    prompts = tuple(tuple(prompt) for prompt in prompts_of(spec, (5, 1, 9, 3, 2)))
    runs = [
        rank_pool(
            run_rank,
            job_of(LAYOUTS[name], spec, tmp_path / "c", prompts, 0, "w8a8"),
            LAYOUTS[name].total_dies,
        )
        for name in ("one die", layout)
    ]
    assert [report.token_ids for report in runs[1]] == [runs[0][0].token_ids] * len(runs[1])
    assert [report.differences for report in runs[1]] == [()] * len(runs[1])
