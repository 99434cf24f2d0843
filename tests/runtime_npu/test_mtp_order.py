"""The order in which MTP passes are issued: spelled out, and against the StepGraph."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracle import our_model, prompts_of, spec, write
from schedules import SCHEDULES, TWO_STREAMS

from hardware_models.hardware import load_hardware
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.compare import differences
from runtime_npu.generate import Decoder, generate
from runtime_npu.kv_cache import pool_blocks
from runtime_npu.plan import layer_plan
from runtime_npu.record import Event, OpRecord
from twin.graph.build import build_step_graph
from twin.schedule import Prefetch, Schedule
from twin.validate import validate_schedule

HARDWARE = load_hardware("a3-752t")
SPEC = spec("drafting")
PASS = (
    "embed",
    "norms",
    "eh_proj",
    *(f"attention.{op}" for op in ("input_norm", "prolog", "attention", "uv", "o_proj")),
    "attention.post_norm",
    *(f"dense.{op}" for op in ("gate_up", "swiglu", "down")),
    "norm",
    "lm_head",
    "sample",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mtp") / "checkpoint", SPEC, 1, mtp=True)


def with_mtp(schedule: Schedule, next_n: int, *prefetches: Prefetch) -> Schedule:
    workload = replace(schedule.workload, next_n=next_n)
    return replace(schedule, workload=workload, prefetch=(*schedule.prefetch, *prefetches))


PREFETCHES = (
    Prefetch(weight="mtp.eh_proj", after="dense.1.down", bytes=10**7),
    Prefetch(weight="mtp.attention.q_b", after="final_norm", bytes=1000),
    Prefetch(weight="mtp.dense.down", after="mtp.0.eh_proj", bytes=2000),
    Prefetch(weight="mtp.attention.o_proj", after="mtp.1.embed", bytes=3000),
)


def decode_record(
    folder: Path, schedule: Schedule, backend: ReferenceBackend | None = None
) -> tuple[OpRecord, ...]:
    next_n = schedule.workload.next_n
    model = our_model(folder, SPEC, backend=backend, plan=layer_plan(schedule), next_n=next_n)
    prompts = prompts_of(SPEC, (3, 6))
    lengths = [len(prompt) + 8 for prompt in prompts]
    generation = generate(Decoder(model, lengths, pool_blocks(lengths, None)), prompts, 5)
    assert all(step == generation.steps[0] for step in generation.steps)
    assert len(generation.steps) > 1
    return generation.steps[0]


@pytest.mark.parametrize("next_n", [1, 2])
def test_passes_follow_the_main_model(next_n: int, folder: Path) -> None:
    records = decode_record(folder, with_mtp(TWO_STREAMS, next_n))
    main = [record.name for record in records if record.stream == "main"]
    drafts = [f"mtp.{number}.{op}" for number in range(next_n) for op in PASS]
    assert main[main.index("final_norm") :] == ["final_norm", "lm_head", "sample", *drafts]


@pytest.mark.parametrize("next_n", [1, 2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_record_equals_the_step_graph(name: str, next_n: int, folder: Path) -> None:
    # Eager mode has no stream to prefetch on.
    prefetches = () if name == "eager" else PREFETCHES[: 2 + next_n]
    schedule = with_mtp(SCHEDULES[name], next_n, *prefetches)
    records = decode_record(folder, schedule)
    graph = build_step_graph(schedule, SPEC, HARDWARE)
    assert differences(records, graph) == []
    assert len(records) == len(graph.ops)


class ForgetsAPass(ReferenceBackend):
    def launch(self, name: str, kind: str) -> Event:
        return Event(name, "main") if name.startswith("mtp.1.") else super().launch(name, kind)


class IgnoresMtpPrefetch(ReferenceBackend):
    def prefetch(self, name: str, weight: torch.Tensor, after: Event, max_bytes: int) -> None:
        if "mtp.dense" not in name:
            super().prefetch(name, weight, after, max_bytes)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (ForgetsAPass, "the step graph has mtp.1.embed"),
        (IgnoresMtpPrefetch, "the step graph has prefetch.mtp.dense.down"),
    ],
)
def test_a_fault_is_detected(backend: type[ReferenceBackend], message: str, folder: Path) -> None:
    schedule = with_mtp(TWO_STREAMS, 2, *PREFETCHES)
    validate_schedule(schedule, SPEC, HARDWARE)
    found = differences(
        decode_record(folder, schedule, backend()), build_step_graph(schedule, SPEC, HARDWARE)
    )
    assert message in "\n".join(found)
