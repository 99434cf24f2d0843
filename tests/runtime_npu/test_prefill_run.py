"""Prefill schedules on one die: order of ops, numbers against transformers, mistakes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LayoutReport, colocated
from oracle import SPECS, TOLERANCE, error, oracle_run, our_model, prompts_of
from prefills import (
    ExchangesOnMain,
    ForgetsZeroExperts,
    PrefillJob,
    ReadsTooEarly,
    SkipsTheWayBack,
    prefill_of,
    run_prefill,
)

from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.generate import Decoder, generate
from runtime_npu.kv_cache import pool_blocks
from runtime_npu.model import longcat, shortcut
from runtime_npu.model.double_routing import DoubleRouting
from runtime_npu.model.issue import Issuer
from runtime_npu.model.pieces import Pieces, finish
from runtime_npu.plan import prefill_order
from twin.schedule import Schedule

Checkpoints = Callable[[str], Path]
Oracles = Callable[[str], torch.nn.Module]
LENGTHS = (5, 1, 17, 8)
STEPS = 4
ATTENTION = (
    "input_norm",
    "q_a",
    "q_norm",
    "q_b",
    "rope",
    "kv_a",
    "kv_norm_rope_cache",
    "kv_b",
    "attention",
    "o_proj",
    "post_norm",
)
CHUNK = (
    "init_routing",
    "count_all_to_all",
    "token_all_to_all",
    "re_routing",
    "gmm1",
    "swiglu",
    "gmm2",
    "restore_order",
    "back_all_to_all",
    "finalize_routing",
)
DENSE = ("gate_up", "swiglu", "down")


def on_one_die(
    schedule: Schedule,
    folder: Path,
    name: str = "plain",
    lengths: Sequence[int] = LENGTHS,
    backend: type[ReferenceBackend] = ReferenceBackend,
) -> LayoutReport:
    prompts = tuple(tuple(prompt) for prompt in prompts_of(SPECS[name], lengths))
    job = PrefillJob(schedule, SPECS[name], folder, prompts, STEPS, backend)
    return run_prefill(job, 0)


def largest_error(report: LayoutReport, theirs: torch.nn.Module, name: str = "plain") -> float:
    errors = []
    for sequence, prompt in enumerate(prompts_of(SPECS[name], LENGTHS)):
        _, _, logits = oracle_run(theirs, prompt, STEPS)
        errors += [error(report.logits[sequence, step], logits[step]) for step in range(STEPS)]
    return max(errors)


def test_order_of_two_chunks(checkpoint_of: Checkpoints) -> None:
    schedule = prefill_of(colocated(1), chunk=5)
    model = our_model(checkpoint_of("plain"), SPECS["plain"], prefill=prefill_order(schedule))
    prompts = prompts_of(SPECS["plain"], (3, 5))
    decoder = Decoder(model, [5, 5], pool_blocks([5, 5], None))
    records = generate(decoder, prompts, 1).prefill_ops
    layer = [
        *(f"attention.0.{op}" for op in ATTENTION),
        *(f"moe.{op}" for op in ("cast", "router_matmul", "topk")),
        *(f"moe.chunk0.{op}" for op in CHUNK),
        *(f"moe.chunk1.{op}" for op in CHUNK),
        *(f"dense.0.{op}" for op in DENSE),
        *(f"attention.1.{op}" for op in ATTENTION),
        *(f"dense.1.{op}" for op in DENSE),
        "add",
    ]
    assert [record.name for record in records if record.stream == "main"] == [
        "embed",
        *(f"layer.{number}.{op}" for number in (0, 1) for op in layer),
        "last_tokens",
        "final_norm",
        "lm_head",
        "sample",
    ]
    waits = {record.name: record.waits for record in records}
    read = "layer.1.moe.chunk1.read_counts"
    assert waits[read] == ("layer.1.moe.chunk1.count_all_to_all",)
    assert waits["layer.1.moe.chunk1.token_all_to_all"] == (read,)


def test_micro_batches_give_way_behind_exchanges(checkpoint_of: Checkpoints) -> None:
    schedule = prefill_of(colocated(1), micro_batches=2, link=True)
    model = our_model(checkpoint_of("plain"), SPECS["plain"], prefill=prefill_order(schedule))
    decoder = Decoder(model, [5, 5], pool_blocks([5, 5], None))
    records = generate(decoder, prompts_of(SPECS["plain"], (3, 5)), 1).prefill_ops
    layer = [r.name.removeprefix("layer.0.") for r in records if r.name.startswith("layer.0.")]
    start = layer.index("mb0.moe.init_routing")
    assert layer[start : start + 2] == ["mb0.moe.init_routing", "mb0.moe.count_all_to_all"]
    assert layer[start + 2] == "mb1.attention.0.input_norm"
    start = layer.index("mb1.moe.count_all_to_all") + 1
    assert layer[start : start + 5] == [
        "mb0.moe.read_counts",
        "mb0.moe.token_all_to_all",
        "mb1.moe.read_counts",
        "mb1.moe.token_all_to_all",
        "mb0.moe.re_routing",
    ]
    by_name = {record.name: record for record in records}
    back = by_name["layer.0.mb1.moe.back_all_to_all"]
    assert (back.stream, back.waits) == ("link", ("layer.0.mb1.moe.restore_order",))
    last = by_name["layer.0.mb1.moe.finalize_routing"]
    assert (last.stream, last.waits) == ("main", (back.name,))


@pytest.mark.parametrize("name", SPECS)
def test_prefill_then_decode_computes_what_transformers_does(
    name: str, checkpoint_of: Checkpoints, oracle_of: Oracles
) -> None:
    schedule = prefill_of(colocated(1), chunk=7, micro_batches=2, link=True)
    report = on_one_die(schedule, checkpoint_of(name), name)
    assert report.differences == []
    assert largest_error(report, oracle_of(name), name) < TOLERANCE
    for sequence, prompt in enumerate(prompts_of(SPECS[name], LENGTHS)):
        tokens = oracle_run(oracle_of(name), prompt, STEPS)[0]
        assert [step[sequence] for step in report.tokens] == tokens


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    chunk=st.none() | st.integers(1, 50),
    parts=st.integers(1, 5),
    link=st.booleans(),
)
def test_record_equals_the_step_graph_for_any_prompts(
    lengths: list[int], chunk: int | None, parts: int, link: bool, checkpoint_of: Checkpoints
) -> None:
    micro_batches = min(parts, len(lengths))
    schedule = prefill_of(colocated(1), chunk=chunk, micro_batches=micro_batches, link=link)
    report = on_one_die(schedule, checkpoint_of("plain"), lengths=lengths)
    assert report.differences == []


class TakesChunksInAnotherOrder(DoubleRouting):
    """Puts the last chunk's rows first."""

    def pieces(self, issue: Issuer, x: torch.Tensor) -> Pieces[torch.Tensor]:
        rows = yield from super().pieces(issue, x)
        return rows.roll(len(rows) % 7, 0)


class IssuesChunksBackwards(DoubleRouting):
    """Calls the first chunk the second."""

    def _chunk(self, issue: Issuer, block: str, *part: torch.Tensor) -> Pieces[torch.Tensor]:
        swapped = {"moe.chunk0": "moe.chunk1", "moe.chunk1": "moe.chunk0"}
        return super()._chunk(issue, swapped.get(block, block), *part)


CHUNKED = prefill_of(colocated(1), chunk=7)


def test_a_forgotten_share_of_zero_experts_shows(
    checkpoint_of: Checkpoints, oracle_of: Oracles
) -> None:
    report = on_one_die(CHUNKED, checkpoint_of("plain"), backend=ForgetsZeroExperts)
    assert largest_error(report, oracle_of("plain")) > 10 * TOLERANCE


def test_chunks_in_another_order_show(
    checkpoint_of: Checkpoints, oracle_of: Oracles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortcut, "DoubleRouting", TakesChunksInAnotherOrder)
    report = on_one_die(CHUNKED, checkpoint_of("plain"))
    assert largest_error(report, oracle_of("plain")) > 10 * TOLERANCE
    monkeypatch.setattr(shortcut, "DoubleRouting", IssuesChunksBackwards)
    assert (
        "issued layer.0.moe.chunk1.init_routing, the step graph has layer.0.moe.chunk0.init_routing"
        in "\n".join(on_one_die(CHUNKED, checkpoint_of("plain")).differences)
    )


def test_micro_batches_one_after_the_other_show(
    checkpoint_of: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longcat, "in_turn", lambda chains: [finish(chain) for chain in chains])
    schedule = prefill_of(colocated(1), micro_batches=2)
    found = on_one_die(schedule, checkpoint_of("plain")).differences
    assert (
        "issued layer.0.mb0.moe.read_counts, the step graph has "
        "layer.0.mb1.attention.0.input_norm.launch" in found[0]
    )


FAULTS: dict[type[ReferenceBackend], str] = {
    SkipsTheWayBack: "the step graph has layer.0.mb0.moe.back_all_to_all",
    ReadsTooEarly: "layer.1.mb1.moe.read_counts: waits is ()",
    ExchangesOnMain: "link[0]: issued nothing, the step graph has layer.0.mb0.moe.count_all_to_all",
}


@pytest.mark.parametrize("backend", FAULTS)
def test_a_fault_in_the_order_shows(
    backend: type[ReferenceBackend], checkpoint_of: Checkpoints
) -> None:
    schedule = prefill_of(colocated(1), micro_batches=2, link=True)
    report = on_one_die(schedule, checkpoint_of("plain"), backend=backend)
    assert FAULTS[backend] in "\n".join(report.differences)
