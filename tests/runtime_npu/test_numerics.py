"""Logits and greedy tokens against transformers, and mutations that must show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import SPECS, TOLERANCE, error, oracle, oracle_run, our_model, our_run, prompts_of, spec
from prefills import ForgetsZeroExperts

from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.plan import PrefillOrder
from runtime_npu.rope import Rope

STEPS = 32
LENGTHS = (5, 1, 17, 8)
Checkpoints = Callable[[str], Path]
Oracles = Callable[[str], torch.nn.Module]


@pytest.mark.parametrize("name", SPECS)
def test_logits_and_tokens_equal_transformers(
    name: str, checkpoint_of: Checkpoints, oracle_of: Oracles
) -> None:
    prompts = prompts_of(SPECS[name], LENGTHS)
    tokens, prefill, steps = our_run(our_model(checkpoint_of(name), SPECS[name]), prompts, STEPS)
    for row, prompt in enumerate(prompts):
        their_tokens, their_prefill, their_steps = oracle_run(oracle_of(name), prompt, STEPS)
        assert tokens[row] == their_tokens
        assert error(prefill[row], their_prefill) < TOLERANCE
        per_step = [error(a, b) for a, b in zip(steps[row], their_steps, strict=True)]
        assert max(per_step) < TOLERANCE


def test_greedy_text_is_not_degenerate(checkpoint_of: Checkpoints) -> None:
    """Equal tokens say little if the model repeats one token whatever comes in."""
    model = our_model(checkpoint_of("plain"), SPECS["plain"])
    tokens, _, _ = our_run(model, prompts_of(SPECS["plain"], LENGTHS), STEPS)
    assert all(len(set(row)) > STEPS // 4 for row in tokens)
    assert len({tuple(row) for row in tokens}) == len(LENGTHS)


def test_a_sequence_does_not_depend_on_its_batch(checkpoint_of: Checkpoints) -> None:
    model = our_model(checkpoint_of("plain"), SPECS["plain"])
    prompts = prompts_of(SPECS["plain"], LENGTHS)
    _, _, together = our_run(model, prompts, 12)
    for row, prompt in enumerate(prompts):
        _, _, alone = our_run(model, [prompt], 12)
        assert error(together[row], alone[0]) < TOLERANCE


@pytest.mark.parametrize("block_tokens", [1, 3, 128])
def test_block_size_changes_nothing(block_tokens: int, checkpoint_of: Checkpoints) -> None:
    model = our_model(checkpoint_of("plain"), SPECS["plain"])
    prompts = prompts_of(SPECS["plain"], LENGTHS)
    tokens, _, steps = our_run(model, prompts, 12, block_tokens)
    other_tokens, _, others = our_run(model, prompts, 12, 4)
    assert tokens == other_tokens
    assert error(steps, others) < 1e-6


def test_prefill_in_moe_chunks_changes_nothing(checkpoint_of: Checkpoints) -> None:
    prompts = prompts_of(SPECS["plain"], LENGTHS)
    whole = our_model(checkpoint_of("plain"), SPECS["plain"])
    chunked = our_model(
        checkpoint_of("plain"), SPECS["plain"], prefill=PrefillOrder(chunk_tokens=7)
    )
    assert error(our_run(chunked, prompts, 4)[2], our_run(whole, prompts, 4)[2]) < TOLERANCE
    for model, chunks in ((chunked, 5), (whole, 1)):
        names = [record.name for record in model.backend.recorder.take()]
        found = [n for n in names if n.startswith("layer.0.moe") and n.endswith("gmm1")]
        assert len(found) == chunks + 3


def test_bf16_stays_near_transformers_bf16(checkpoint_of: Checkpoints) -> None:
    """Rounding differs (absorbed attention, fp32 sums), so only the size of it is checked."""
    model_spec, folder = SPECS["no_zero_experts"], checkpoint_of("no_zero_experts")
    prompts = prompts_of(model_spec, (9,))
    exact = our_run(our_model(folder, model_spec), prompts, 1)[1][0]
    ours = our_run(our_model(folder, model_spec, dtype=torch.bfloat16), prompts, 1)[1][0].float()
    theirs = oracle_run(oracle(folder, torch.bfloat16), prompts[0], 1)[1].float()

    def noise(logits: torch.Tensor) -> float:
        return float((logits - exact).norm() / exact.norm())

    assert 0 < noise(ours) < 2 * noise(theirs)


class HalfLayoutRope(ReferenceBackend):
    """Pairs element i with i + width / 2, as other models do."""

    def rotate(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        paired = torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)
        return super().rotate(paired, rope)


class RenormalisedWeights(ReferenceBackend):
    def topk_gating(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = super().topk_gating(*args)
        return weights / weights.sum(-1, keepdim=True) * args[-1], ids


def _drop_q_scale(model: LongcatFlash) -> None:
    for layer in model.layers:
        for attention in layer.attention:
            attention.q_scale = 1.0


def _drop_kv_scale(model: LongcatFlash) -> None:
    for layer in model.layers:
        for attention in layer.attention:
            attention.kv_scale = 1.0


def _drop_correction_bias(model: LongcatFlash) -> None:
    for layer in model.layers:
        layer.moe.correction_bias.zero_()


def _drop_routed_scale(model: LongcatFlash) -> None:
    for layer in model.layers:
        layer.moe.scale = 1.0


def _nothing(model: LongcatFlash) -> None:
    del model


MUTATIONS: dict[str, tuple[type[ReferenceBackend], Callable[[LongcatFlash], None]]] = {
    "q scale": (ReferenceBackend, _drop_q_scale),
    "kv scale": (ReferenceBackend, _drop_kv_scale),
    "correction bias": (ReferenceBackend, _drop_correction_bias),
    "routed scale": (ReferenceBackend, _drop_routed_scale),
    "zero experts": (ForgetsZeroExperts, _nothing),
    "rope layout": (HalfLayoutRope, _nothing),
    "renormalised weights": (RenormalisedWeights, _nothing),
}


@pytest.mark.parametrize("name", ["plain", "many_heads", "many_experts", "low_theta"])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_fails_the_comparison(
    mutation: str, name: str, checkpoint_of: Checkpoints, oracle_of: Oracles
) -> None:
    backend, mutate = MUTATIONS[mutation]
    model = our_model(checkpoint_of(name), SPECS[name], backend=backend())
    mutate(model)
    prompt = prompts_of(SPECS[name], (17,))[0]
    _, prefill, steps = our_run(model, [prompt], 6)
    _, their_prefill, their_steps = oracle_run(oracle_of(name), prompt, 6)
    assert error(prefill[0], their_prefill) > 10 * TOLERANCE
    assert error(steps[0], their_steps) > 10 * TOLERANCE


def test_the_latent_norms_have_an_epsilon_of_their_own(
    checkpoint_of: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small projections epsilon matters: 1e-6 there, though the config says 1e-5."""
    model_spec, folder = SPECS["plain"], checkpoint_of("plain")
    theirs, prompt = oracle(folder), prompts_of(model_spec, (9,))[0]
    ours = our_model(folder, model_spec)
    with torch.no_grad():
        for name, weight in [*theirs.named_parameters(), *ours.named_parameters()]:
            if name.rpartition(".")[2] in ("q_a", "kv_a") or "_a_proj" in name:
                weight.mul_(1e-3)
    expected = oracle_run(theirs, prompt, 4)[2]
    assert error(our_run(ours, [prompt], 4)[2][0], expected) < TOLERANCE
    monkeypatch.setattr("runtime_npu.model.attention.LATENT_NORM_EPS", model_spec.rms_norm_eps)
    assert error(our_run(ours, [prompt], 4)[2][0], expected) > 10 * TOLERANCE


def test_flags_of_the_scales_are_followed(checkpoint_of: Checkpoints) -> None:
    """A config can switch either scale off; transformers has no such flag to compare with."""
    folder, prompts = checkpoint_of("plain"), prompts_of(SPECS["plain"], (9,))
    switched = our_model(folder, spec("off", mla_scale_q_lora=False, mla_scale_kv_lora=False))
    mutated = our_model(folder, SPECS["plain"])
    _drop_q_scale(mutated)
    _drop_kv_scale(mutated)
    assert torch.equal(our_run(switched, prompts, 3)[2], our_run(mutated, prompts, 3)[2])
