"""Checkpoint tensors: their names and shapes, and how parameters are put together from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from twin.model_spec import ModelSpec

ROUTER_TENSORS = ("classifier.weight", "e_score_correction_bias")
"""Ends of the names of tensors that are fp32 whatever the checkpoint's dtype."""

Read = Callable[[str], torch.Tensor]
"""Reads a checkpoint tensor by name, in the dtype of its parameter."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The tensors of a checkpoint without its MTP layer.

    ``required`` maps names to shapes.  ``ignored`` matches what may be there besides: MTP
    tensors, and the gate and up rows that transformers writes for zero experts.
    """

    required: Mapping[str, tuple[int, ...]]
    ignored: Callable[[str], bool]


def tensor_names(spec: ModelSpec) -> TensorNames:
    """The names and shapes in the Hugging Face layout of the longcat_flash family."""
    hidden = spec.hidden_size
    required: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (spec.vocab_size, hidden),
    }
    for layer in range(spec.num_layers):
        base = f"model.layers.{layer}"
        for half in (0, 1):
            required |= _half(spec, base, half)
        required[f"{base}.mlp.router.classifier.weight"] = (spec.router_width, hidden)
        required[f"{base}.mlp.router.e_score_correction_bias"] = (spec.router_width,)
        for expert in range(spec.n_routed_experts):
            required |= _ffn(f"{base}.mlp.experts.{expert}", hidden, spec.expert_ffn_hidden_size)
    return TensorNames(required, _ignored(spec))


def _half(spec: ModelSpec, base: str, half: int) -> dict[str, tuple[int, ...]]:
    hidden, heads = spec.hidden_size, spec.num_attention_heads
    attention = f"{base}.self_attn.{half}"
    kv_b = heads * (spec.qk_nope_head_dim + spec.v_head_dim)
    return {
        f"{base}.input_layernorm.{half}.weight": (hidden,),
        f"{base}.post_attention_layernorm.{half}.weight": (hidden,),
        f"{attention}.q_a_proj.weight": (spec.q_lora_rank, hidden),
        f"{attention}.q_a_layernorm.weight": (spec.q_lora_rank,),
        f"{attention}.q_b_proj.weight": (heads * spec.qk_head_dim, spec.q_lora_rank),
        f"{attention}.kv_a_proj_with_mqa.weight": (spec.kv_width, hidden),
        f"{attention}.kv_a_layernorm.weight": (spec.kv_lora_rank,),
        f"{attention}.kv_b_proj.weight": (kv_b, spec.kv_lora_rank),
        f"{attention}.o_proj.weight": (hidden, spec.o_proj_width),
        **_ffn(f"{base}.mlps.{half}", hidden, spec.ffn_hidden_size),
    }


def _ffn(base: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{base}.gate_proj.weight": (width, hidden),
        f"{base}.up_proj.weight": (width, hidden),
        f"{base}.down_proj.weight": (hidden, width),
    }


def _ignored(spec: ModelSpec) -> Callable[[str], bool]:
    expert = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up)_proj\.weight")

    def ignored(name: str) -> bool:
        if name.startswith("model.mtp."):
            return True
        match = expert.fullmatch(name)
        return (
            match is not None
            and int(match[1]) < spec.num_layers
            and spec.n_routed_experts <= int(match[2]) < spec.router_width
        )

    return ignored


def parameters(spec: ModelSpec, read: Read) -> dict[str, torch.Tensor]:
    """The state of a ``LongcatFlash``: merged gate_up and w13, kv_b in its two parts."""
    state = {
        "embed": read("model.embed_tokens.weight"),
        "final_norm": read("model.norm.weight"),
        "lm_head": read("lm_head.weight"),
    }
    for layer in range(spec.num_layers):
        base = f"model.layers.{layer}"
        local: dict[str, torch.Tensor] = {}
        for half in (0, 1):
            local |= _attention(spec, read, base, half)
            ffn = f"{base}.mlps.{half}"
            local[f"dense.{half}.gate_up"] = _gate_up(read, ffn)
            local[f"dense.{half}.down"] = read(f"{ffn}.down_proj.weight")
        experts = [f"{base}.mlp.experts.{expert}" for expert in range(spec.n_routed_experts)]
        local["moe.router"] = read(f"{base}.mlp.router.classifier.weight")
        local["moe.correction_bias"] = read(f"{base}.mlp.router.e_score_correction_bias")
        local["moe.w13"] = torch.stack([_gate_up(read, expert) for expert in experts])
        local["moe.w2"] = torch.stack([read(f"{expert}.down_proj.weight") for expert in experts])
        state |= {f"layers.{layer}.{name}": tensor for name, tensor in local.items()}
    return state


def _attention(spec: ModelSpec, read: Read, base: str, half: int) -> dict[str, torch.Tensor]:
    attention, nope = f"{base}.self_attn.{half}", spec.qk_nope_head_dim
    # Per head: the rows that make its key, then those that make its value.
    kv_b = read(f"{attention}.kv_b_proj.weight").view(
        spec.num_attention_heads, nope + spec.v_head_dim, spec.kv_lora_rank
    )
    tensors = {
        "input_norm": read(f"{base}.input_layernorm.{half}.weight"),
        "q_a": read(f"{attention}.q_a_proj.weight"),
        "q_a_norm": read(f"{attention}.q_a_layernorm.weight"),
        "q_b": read(f"{attention}.q_b_proj.weight"),
        "kv_a": read(f"{attention}.kv_a_proj_with_mqa.weight"),
        "kv_a_norm": read(f"{attention}.kv_a_layernorm.weight"),
        "uk": kv_b[:, :nope].contiguous(),
        "uv": kv_b[:, nope:].transpose(1, 2).contiguous(),
        "o_proj": read(f"{attention}.o_proj.weight"),
        "post_norm": read(f"{base}.post_attention_layernorm.{half}.weight"),
    }
    return {f"attention.{half}.{name}": tensor for name, tensor in tensors.items()}


def _gate_up(read: Read, base: str) -> torch.Tensor:
    return torch.cat([read(f"{base}.gate_proj.weight"), read(f"{base}.up_proj.weight")])
