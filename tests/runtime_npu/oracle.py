"""Tiny random models, their checkpoints, and transformers as the independent implementation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from runtime_npu.backends.base import Backend
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.checkpoint import Checkpoint, load_weights
from runtime_npu.generate import Decoder
from runtime_npu.kv_cache import pool_blocks
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.plan import PLAIN, PLAIN_PREFILL, LayerPlan, PrefillOrder
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.weights import Contents
from twin.model_spec import ModelSpec

TOLERANCE = 1e-4
"""Of the largest logit, in fp32."""


def spec(name: str, **changes: object) -> ModelSpec:
    fields: dict[str, object] = {
        "name": name,
        "vocab_size": 97,
        "hidden_size": 48,
        "num_layers": 2,
        "num_attention_heads": 3,
        "ffn_hidden_size": 80,
        "q_lora_rank": 20,
        "kv_lora_rank": 12,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "v_head_dim": 14,
        "n_routed_experts": 6,
        "zero_expert_num": 3,
        "moe_topk": 3,
        "expert_ffn_hidden_size": 24,
        "max_position_embeddings": 512,
        **changes,
    }
    return ModelSpec(**fields)  # type: ignore[arg-type]


SPECS = {
    s.name: s
    for s in (
        spec("plain"),
        spec("one_layer_small_vocab", num_layers=1, vocab_size=11, routed_scaling_factor=2.5),
        spec(
            "many_heads",
            num_attention_heads=8,
            hidden_size=64,
            kv_lora_rank=32,
            q_lora_rank=16,
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            v_head_dim=8,
        ),
        spec(
            "many_experts",
            n_routed_experts=24,
            zero_expert_num=12,
            moe_topk=12,
            num_layers=3,
            vocab_size=1024,
        ),
        spec("no_zero_experts", zero_expert_num=0, moe_topk=2, n_routed_experts=4),
        spec("low_theta", rope_theta=100.0, rms_norm_eps=1e-3, v_head_dim=20),
    )
}


def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    model, report = transformers.LongcatFlashForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    return model.eval()


def our_model(
    folder: Path,
    model_spec: ModelSpec,
    *,
    backend: Backend | None = None,
    plan: LayerPlan = PLAIN,
    dtype: torch.dtype = torch.float32,
    prefill: PrefillOrder = PLAIN_PREFILL,
    next_n: int = 0,
) -> LongcatFlash:
    model = LongcatFlash(
        model_spec,
        backend or ReferenceBackend(),
        plan,
        dtype=dtype,
        prefill=prefill,
        next_n=next_n,
    )
    with Checkpoint(folder, model_spec, None, Contents(mtp=next_n > 0)) as checkpoint:
        load_weights(model, checkpoint, dtype)
    return model


def prompts_of(model_spec: ModelSpec, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(model_spec.vocab_size, (length,), generator=generator).tolist()
        for length in lengths
    ]


def oracle_run(
    model: torch.nn.Module, prompt: Sequence[int], steps: int
) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Greedy tokens [steps], logits of all prompt positions, and of each step [steps, vocab]."""
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([list(prompt)]), use_cache=True)
        prefill = out.logits[0]
        logits, tokens = [out.logits[0, -1]], [int(out.logits[0, -1].argmax())]
        for _ in range(steps - 1):
            out = model(input_ids=torch.tensor([[tokens[-1]]]), cache=out.cache, use_cache=True)
            logits.append(out.logits[0, -1])
            tokens.append(int(logits[-1].argmax()))
    return tokens, prefill, torch.stack(logits)


def our_run(
    model: LongcatFlash, prompts: Sequence[Sequence[int]], steps: int, block_tokens: int = 4
) -> tuple[list[list[int]], list[torch.Tensor], torch.Tensor]:
    """Greedy tokens per prompt, prefill logits per prompt, step logits [prompts, steps, vocab]."""
    lengths = [len(prompt) + steps for prompt in prompts]
    blocks = pool_blocks(lengths, None, block_tokens)
    decoder = Decoder(model, lengths, blocks, block_tokens=block_tokens)
    out = decoder.prefill(prompts)
    with torch.inference_mode():
        every = torch.nn.functional.linear(out.hidden, model.lm_head)
    prefill = list(torch.split(every, [len(prompt) for prompt in prompts]))
    logits, tokens = [out.logits], [out.tokens.tolist()]
    for _ in range(steps - 1):
        out = decoder.step(tokens[-1])
        logits.append(out.logits)
        tokens.append(out.tokens.tolist())
    return [list(row) for row in zip(*tokens, strict=True)], prefill, torch.stack(logits, 1)


def error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference over the largest logit."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def write(folder: Path, model_spec: ModelSpec, seed: int = 0, *, mtp: bool = False) -> Path:
    make_checkpoint(folder, model_spec, seed, contents=Contents(mtp=mtp))
    return folder
