"""W8A8: each op against plain arithmetic, the model against bf16, the record against the graph."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import prompts_of, spec
from prefills import prefill_of
from safetensors.torch import load_file
from schedules import SCHEDULES, TWO_STREAMS

from hardware_models.hardware import load_hardware
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.compare import differences
from runtime_npu.conversion import convert
from runtime_npu.generate import Decoder, generate
from runtime_npu.kv_cache import pool_blocks
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.parallel.world import World, alone
from runtime_npu.plan import for_prompts
from runtime_npu.quantise import quantise_rows
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.rank import build_model
from runtime_npu.source import WeightSource
from runtime_npu.weights import Contents
from twin.graph.build import build_step_graph
from twin.schedule import Schedule
from twin.validate import validate_schedule

SPEC = spec("int8", vocab_size=300, hidden_size=64, ffn_hidden_size=96, n_routed_experts=5)
BACKEND = ReferenceBackend()
SIZES = st.integers(1, 9)


def scheduled(schedule: Schedule, quantisation: str, next_n: int = 0) -> Schedule:
    deployment = replace(schedule.deployment, quantisation=quantisation)  # type: ignore[arg-type]
    return replace(
        schedule, deployment=deployment, workload=replace(schedule.workload, next_n=next_n)
    )


def model_of(folder: Path, schedule: Schedule) -> LongcatFlash:
    source = WeightSource(folder, SPEC, "bfloat16", ())
    model = build_model(schedule, source, World(schedule.deployment))
    assert isinstance(model, LongcatFlash)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("w8a8")
    found = {"bf16": base / "bf16", "w8a8": base / "w8a8"}
    make_checkpoint(found["bf16"], SPEC, 6, "bfloat16", Contents(mtp=True))
    convert(found["bf16"], found["w8a8"], lambda done, total: None)
    return found


def integers(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, shape, generator=generator).to(torch.int8)


@given(SIZES, SIZES, SIZES, st.integers(0, 99))
def test_integer_products_are_exact(rows: int, inner: int, width: int, seed: int) -> None:
    x, weight = integers(rows, 64 * inner, seed=seed), integers(width, 64 * inner, seed=seed + 1)
    found = BACKEND.int_matmul(x, weight)
    assert found.dtype == torch.int32
    exact = x.numpy().astype(np.int64) @ weight.numpy().astype(np.int64).T
    assert np.array_equal(found.numpy(), exact)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 99))
def test_grouped_ops_equal_the_plain_ones_expert_by_expert(counts: list[int], seed: int) -> None:
    total, hidden, width = sum(counts), 8, 3
    rows = quantise_rows(torch.randn(total, hidden, generator=torch.Generator().manual_seed(seed)))
    w13, w2 = (
        integers(len(counts), 2 * width, hidden, seed=1),
        integers(len(counts), 5, width, seed=2),
    )
    generator = torch.Generator().manual_seed(seed)
    w13_scale = torch.rand(len(counts), 2 * width, generator=generator)
    w2_scale = torch.rand(len(counts), 5, generator=generator)
    each = torch.tensor(counts)
    both = BACKEND.grouped_int_matmul(rows.values, w13, each)
    inner = BACKEND.dequant_swiglu_quant(both, rows.scale, w13_scale, each)
    out = BACKEND.grouped_quant_matmul(inner, w2, w2_scale, each, dtype=torch.float32)
    start = 0
    for expert, count in enumerate(counts):
        own = slice(start, start + count)
        x = rows.values[own].double() * rows.scale[own, None].double()
        gate_up = x @ (w13[expert].double() * w13_scale[expert, :, None].double()).T
        gate, up = gate_up.chunk(2, -1)
        wanted = torch.nn.functional.silu(gate) * up
        restored = inner.values[own].double() * inner.scale[own, None].double()
        # Where SiLU leaves float32's normal range the op may flush it to zero: `up` times that.
        flushed = up.abs() * torch.finfo(torch.float32).tiny
        assert ((restored - wanted).abs() <= 0.51 * inner.scale[own, None] + flushed).all()
        exact = restored @ (w2[expert].double() * w2_scale[expert, :, None].double()).T
        assert torch.allclose(out[own].double(), exact, rtol=1e-5, atol=1e-5)
        start += count


def test_the_scale_of_a_row_travels_with_it() -> None:
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1e-6], [1.0], [1e6], [0.0], [3.0]]
    )
    ids = torch.tensor([[3, 0], [1, 9], [0, 2], [2, 3], [8, 9]])
    sent, scale = BACKEND.dispatch_quantised(x, ids, 4, alone().groups["ep"])
    assert sent.rows.dtype == torch.int8
    assert sent.counts.tolist() == [2, 1, 2, 2]
    wanted = quantise_rows(x[sent.source // 2])
    assert torch.equal(sent.rows, wanted.values)
    assert torch.equal(scale, wanted.scale)


def test_a_random_checkpoint_in_int8_is_the_converted_one(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "c", SPEC, 6, "bfloat16", Contents(mtp=True, int8=True))
    for file in folders["w8a8"].glob("*.safetensors"):
        held, made = load_file(file), load_file(tmp_path / "c" / file.name)
        assert set(held) == set(made)
        assert all(torch.equal(made[name], tensor) for name, tensor in held.items())


def logits_of(model: LongcatFlash) -> torch.Tensor:
    """Of the last row of a prefill, and of one decode step."""
    prompts = prompts_of(SPEC, (9, 4))
    lengths = [12, 12]
    decoder = Decoder(model, lengths, pool_blocks(lengths, None))
    first = decoder.prefill(prompts)
    return torch.stack((first.logits, decoder.step([3, 4]).logits)).float()


def noise(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def test_logits_stay_near_bf16(folders: dict[str, Path]) -> None:
    """Within a few times the rounding of bf16 itself; without a scale they are far off."""
    exact = logits_of(model_of(folders["bf16"], scheduled(TWO_STREAMS, "fp32")))
    rounded = noise(logits_of(model_of(folders["bf16"], scheduled(TWO_STREAMS, "bf16"))), exact)
    schedule = scheduled(TWO_STREAMS, "w8a8")
    model = model_of(folders["w8a8"], schedule)
    quantised = noise(logits_of(model), exact)
    assert rounded < quantised < 0.25
    for name in ("gate_up_scale", "down_scale"):
        mutated = model_of(folders["w8a8"], schedule)
        for layer in mutated.layers:
            getattr(layer.dense[1], name).copy_(getattr(layer.dense[1], name).mean())
        assert noise(logits_of(mutated), exact) > 1.2 * quantised


def test_activations_are_quantised_too(folders: dict[str, Path]) -> None:
    """One FFN: int8 weights alone are nearer to the original than int8 activations with them."""
    model = model_of(folders["w8a8"], scheduled(TWO_STREAMS, "w8a8"))
    dense = model.layers[0].dense[0]
    rows = torch.randn(3, SPEC.hidden_size, generator=torch.Generator().manual_seed(1))
    weight = dense.gate_up.double() * dense.gate_up_scale[:, None].double()
    quantised = BACKEND.dynamic_quant(rows)
    product = BACKEND.int_matmul(quantised.values, dense.gate_up).double()
    found = product * quantised.scale[:, None].double() * dense.gate_up_scale.double()
    assert 1e-3 < noise(found, rows.double() @ weight.T) < 0.02
    restored = quantised.values.double() * quantised.scale[:, None].double()
    assert noise(found, restored @ weight.T) < 1e-6


@pytest.mark.parametrize("next_n", [0, 2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_record_equals_the_step_graph(name: str, next_n: int, folders: dict[str, Path]) -> None:
    schedule, hardware = scheduled(SCHEDULES[name], "w8a8", next_n), load_hardware("a3-752t")
    if name == "two streams":
        validate_schedule(schedule, SPEC, hardware)
    lengths = [12, 12]
    decoder = Decoder(model_of(folders["w8a8"], schedule), lengths, pool_blocks(lengths, None))
    generation = generate(decoder, prompts_of(SPEC, (3, 6)), 4)
    graph = build_step_graph(schedule, SPEC, hardware)
    assert differences(generation.steps[0], graph) == []
    assert len(generation.steps[0]) == len(graph.ops)
    assert "layer.0.dense.1.quant" in {record.name for record in generation.steps[0]}


def test_a_prefill_schedule_in_int8(folders: dict[str, Path]) -> None:
    """Chunks and micro-batches quantise the same rows: as near to bf16 as prefill in one piece."""
    plain = scheduled(TWO_STREAMS, "w8a8")
    planned = prefill_of(plain.deployment, chunk=4, micro_batches=2, link=True)
    prompts, lengths = prompts_of(SPEC, (9, 4)), (9, 4)
    model = model_of(folders["w8a8"], planned)
    found = logits_of(model)
    assert noise(found, logits_of(model_of(folders["w8a8"], plain))) < 0.02
    decoder = Decoder(model, [12, 12], pool_blocks([12, 12], None))
    records = generate(decoder, prompts, 1).prefill_ops
    graph = build_step_graph(for_prompts(planned, lengths), SPEC, load_hardware("a3-752t"))
    assert differences(records, graph) == []
    assert "layer.1.mb1.moe.chunk0.re_routing" in {record.name for record in records}
    assert {r.kind for r in records if r.name.endswith("gmm1")} == {"grouped_int_matmul"}
