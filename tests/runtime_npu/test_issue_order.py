"""The order in which the model issues ops: spelled out, and against the StepGraph."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracle import SPECS, error, our_model, our_run, prompts_of
from schedules import SCHEDULES, SERIAL, TWO_STREAMS

from hardware_models.hardware import load_hardware
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.compare import differences
from runtime_npu.generate import Decoder, generate
from runtime_npu.kv_cache import pool_blocks
from runtime_npu.plan import layer_plan
from runtime_npu.record import Event, OpRecord
from twin.graph.build import build_step_graph
from twin.names import main_ops
from twin.schedule import CoreLimit, Schedule, Stage
from twin.validate import validate_schedule
from twin.weights import weight_bytes

HARDWARE = load_hardware("a3-752t")
SPEC = SPECS["plain"]
Checkpoints = Callable[[str], Path]

ATTENTION = ("input_norm", "prolog", "attention", "uv", "o_proj", "post_norm")
DENSE = ("gate_up", "swiglu", "down")
MOE = ("cast", "router_matmul", "topk", "dispatch", "gmm1", "swiglu", "gmm2", "combine")


def decode_record(
    folder: Path, schedule: Schedule, backend: ReferenceBackend | None = None
) -> tuple[OpRecord, ...]:
    model = our_model(folder, SPEC, backend=backend, plan=layer_plan(schedule))
    prompts = prompts_of(SPEC, (3, 6))
    lengths = [len(prompt) + 3 for prompt in prompts]
    decoder = Decoder(model, lengths, pool_blocks(lengths, None))
    generation = generate(decoder, prompts, 3)
    assert generation.steps[0] == generation.steps[1]
    return generation.steps[0]


def names(records: tuple[OpRecord, ...], stream: str) -> list[str]:
    return [record.name for record in records if record.stream == stream]


def test_order_of_two_streams_and_prefetches(checkpoint_of: Checkpoints) -> None:
    records = decode_record(checkpoint_of("plain"), TWO_STREAMS)
    layer = [
        *(f"attention.0.{op}" for op in ATTENTION),
        *(f"dense.0.{op}" for op in DENSE),
        *(f"attention.1.{op}" for op in ATTENTION),
        *(f"dense.1.{op}" for op in DENSE),
        "add",
    ]
    assert names(records, "main") == [
        "embed",
        *(f"layer.0.{op}" for op in layer),
        *(f"layer.1.{op}" for op in layer),
        "final_norm",
        "lm_head",
        "sample",
    ]
    assert names(records, "moe") == [f"layer.{at}.moe.{op}" for at in (0, 1) for op in MOE]
    assert names(records, "prefetch") == [
        "layer.0.prefetch.moe.router",
        "layer.0.prefetch.dense.0.gate_up",
        "layer.0.prefetch.moe.w2",
        "layer.0.prefetch.attention.1.kv_a",
        "layer.0.prefetch.next.attention.0.q_a",
        "layer.1.prefetch.moe.router",
        "layer.1.prefetch.dense.0.gate_up",
        "layer.1.prefetch.moe.w2",
        "layer.1.prefetch.attention.1.kv_a",
        "layer.1.prefetch.lm_head",
    ]


def test_limits_scopes_waits_and_bytes(checkpoint_of: Checkpoints) -> None:
    records = {r.name: r for r in decode_record(checkpoint_of("plain"), TWO_STREAMS)}

    def at(name: str) -> tuple[str, int | None, int | None, str | None, tuple[str, ...]]:
        r = records[name]
        return r.stream, r.aic, r.aiv, r.scope, r.waits

    assert at("embed") == ("main", None, None, None, ())
    assert at("layer.1.attention.0.post_norm") == ("main", None, None, "layer.1.first", ())
    assert at("layer.1.dense.0.gate_up") == ("main", 16, 32, "layer.1.second.main", ())
    moe_input = ("layer.1.attention.0.post_norm",)
    assert at("layer.1.moe.cast") == ("moe", 8, 16, "layer.1.second.moe", moe_input)
    assert at("layer.1.moe.gmm1") == ("moe", 8, 16, "layer.1.second.moe", ())
    join = ("layer.1.moe.combine",)
    assert at("layer.1.add") == ("main", 16, 32, "layer.1.second.main", join)
    assert at("layer.0.prefetch.moe.w2") == (
        "prefetch",
        None,
        None,
        None,
        ("layer.0.moe.router_matmul",),
    )
    assert records["layer.0.prefetch.moe.w2"].prefetch_bytes == 500
    clipped = records["layer.0.prefetch.attention.1.kv_a"].prefetch_bytes
    assert clipped == 4 * (SPEC.kv_lora_rank + SPEC.qk_rope_head_dim) * SPEC.hidden_size


def test_without_a_moe_stream_the_moe_runs_on_main_behind_its_input(
    checkpoint_of: Checkpoints,
) -> None:
    records = decode_record(checkpoint_of("plain"), SERIAL)
    assert {record.stream for record in records} == {"main"}
    assert not [record for record in records if record.waits]
    main = names(records, "main")
    start = main.index("layer.0.attention.0.post_norm")
    assert main[start + 1 : start + 9] == [f"layer.0.moe.{op}" for op in MOE]
    assert main[start + 9] == "layer.0.dense.0.gate_up"


@pytest.mark.parametrize("name", SCHEDULES)
def test_record_equals_the_step_graph(name: str, checkpoint_of: Checkpoints) -> None:
    records = decode_record(checkpoint_of("plain"), SCHEDULES[name])
    graph = build_step_graph(SCHEDULES[name], SPEC, HARDWARE)
    assert differences(records, graph) == []
    assert len(records) == len(graph.ops)


@pytest.mark.parametrize("moe", [{}, {"moe": CoreLimit(aic=8, aiv=16)}])
def test_record_equals_the_step_graph_wherever_the_first_stage_ends(
    moe: dict[str, CoreLimit], checkpoint_of: Checkpoints
) -> None:
    for op in main_ops(TWO_STREAMS.deployment, "colocated")[:-1]:
        first = Stage(name="a", ends_after=op, streams={"main": CoreLimit(aic=20)})
        main = {"main": CoreLimit(aic=16, aiv=32)}
        second = Stage(name="b", streams={**main, **moe}, join="add" if moe else None)
        schedule = replace(TWO_STREAMS, stages=(first, second), super_kernel=("a", "b.main"))
        validate_schedule(schedule, SPEC, HARDWARE)
        records = decode_record(checkpoint_of("plain"), schedule)
        assert differences(records, build_step_graph(schedule, SPEC, HARDWARE)) == []


def test_the_schedule_changes_no_result(checkpoint_of: Checkpoints) -> None:
    prompts = prompts_of(SPEC, (3, 6))
    runs = [
        our_run(our_model(checkpoint_of("plain"), SPEC, plan=layer_plan(schedule)), prompts, 5)
        for schedule in SCHEDULES.values()
    ]
    for tokens, _, logits in runs[1:]:
        assert tokens == runs[0][0]
        assert error(logits, runs[0][2]) == 0.0


def test_weights_have_the_bytes_that_the_twin_counts(checkpoint_of: Checkpoints) -> None:
    for quantisation, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        deployment = replace(TWO_STREAMS.deployment, quantisation=quantisation)  # type: ignore[arg-type]
        model = our_model(checkpoint_of("plain"), SPEC, dtype=dtype)
        layer = model.layers[0]
        attention = [f"attention.1.{w}" for w in ("q_a", "q_b", "kv_a", "uk", "uv", "o_proj")]
        others = ["dense.0.gate_up", "dense.1.down", "moe.router", "moe.w13", "moe.w2"]
        for weight in [*attention, *others]:
            assert layer.get_parameter(weight).nbytes == weight_bytes(SPEC, deployment, weight)
        assert model.lm_head.nbytes == weight_bytes(SPEC, deployment, "lm_head")


class IgnoresOnePrefetch(ReferenceBackend):
    def prefetch(self, name: str, weight: torch.Tensor, after: Event, max_bytes: int) -> None:
        if name != "layer.1.prefetch.dense.0.gate_up":
            super().prefetch(name, weight, after, max_bytes)


class PrefetchesTooMuch(ReferenceBackend):
    def prefetch(self, name: str, weight: torch.Tensor, after: Event, max_bytes: int) -> None:
        self.recorder.prefetch(name, after, max_bytes)


class IgnoresCoreLimits(ReferenceBackend):
    @contextmanager
    def core_limit(self, aic: int | None, aiv: int | None) -> Iterator[None]:
        yield


class IgnoresVectorLimit(ReferenceBackend):
    def core_limit(self, aic: int | None, aiv: int | None) -> AbstractContextManager[None]:
        return super().core_limit(aic, None)


class IgnoresScopes(ReferenceBackend):
    @contextmanager
    def super_kernel(self, scope: str | None) -> Iterator[None]:
        yield


class MissesTheJoin(ReferenceBackend):
    def wait(self, event: Event) -> None:
        if not event.after.endswith("moe.combine"):
            super().wait(event)


class StartsTheMoeTooEarly(ReferenceBackend):
    def wait(self, event: Event) -> None:
        if not event.after.endswith("post_norm"):
            super().wait(event)


class OneStream(ReferenceBackend):
    def stream(self, name: str) -> AbstractContextManager[None]:
        return super().stream("main")


class SkipsAnOp(ReferenceBackend):
    def launch(self, name: str, kind: str) -> Event:
        if name.endswith("dense.1.swiglu"):
            return Event(name, "main")
        return super().launch(name, kind)


FAULTS: dict[type[ReferenceBackend], str] = {
    IgnoresOnePrefetch: "the step graph has layer.1.prefetch.dense.0.gate_up",
    PrefetchesTooMuch: "layer.0.prefetch.attention.1.kv_a: prefetch_bytes is 1000000000",
    IgnoresCoreLimits: "layer.0.moe.cast: aic is 24, the step graph has 8",
    IgnoresVectorLimit: "layer.0.add: aiv is 48, the step graph has 32",
    IgnoresScopes: "layer.0.add: scope is None, the step graph has 'layer.0.second.main'",
    MissesTheJoin: "layer.0.add: waits is (), the step graph has ('layer.0.moe.combine',)",
    StartsTheMoeTooEarly: "layer.1.moe.cast: waits is ()",
    OneStream: "issued layer.0.moe.cast, the step graph has layer.0.dense.0.gate_up",
    SkipsAnOp: "issued layer.0.dense.1.down, the step graph has layer.0.dense.1.swiglu",
}


@pytest.mark.parametrize("backend", FAULTS)
def test_a_fault_is_detected(backend: type[ReferenceBackend], checkpoint_of: Checkpoints) -> None:
    records = decode_record(checkpoint_of("plain"), TWO_STREAMS, backend())
    found = differences(records, build_step_graph(TWO_STREAMS, SPEC, HARDWARE))
    assert FAULTS[backend] in "\n".join(found)


def test_plain_prefill_runs_without_streams_limits_or_prefetches(
    checkpoint_of: Checkpoints,
) -> None:
    model = our_model(checkpoint_of("plain"), SPEC, plan=layer_plan(TWO_STREAMS))
    prompts = prompts_of(SPEC, (3, 6))
    lengths = [10, 10]
    generation = generate(Decoder(model, lengths, pool_blocks(lengths, None)), prompts, 1)
    assert generation.steps == ()
    found = {(r.stream, r.aic, r.scope) for r in generation.prefill_ops}
    assert found == {("main", None, None), ("host", None, None)}
    assert all(len(row) == 1 for row in generation.token_ids)
