"""Checkpoint tensors: their names and shapes, and how parameters are put together from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from runtime_npu.parallel.shard import Shard
from twin.model_spec import ModelSpec

ROUTER_TENSORS = ("classifier.weight", "e_score_correction_bias")
"""Ends of the names of tensors that are fp32 whatever the checkpoint's dtype."""
SCALE = "_scale"
"""An int8 tensor's fp32 scales, one per output channel [rows, 1], have its name and this."""
MTP = "model.mtp."
_QUANTISED = re.compile(r"\.mlps?\.(.+\.)?(gate|up|down)_proj\.weight")


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor's ``values``, which may lie in its mapped file, at any alignment.

    ``dtype`` is the type that the model has them in.
    """

    values: torch.Tensor
    dtype: torch.dtype

    def copy(self) -> torch.Tensor:
        """The values in memory, without gaps."""
        return self.values.to(self.dtype, copy=True, memory_format=torch.contiguous_format)


Read = Callable[[str], Stored]
"""Reads the rank's part of a checkpoint tensor by name, in the dtype of its parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a model takes from a checkpoint besides its layers.

    ``mtp``: the MTP layer too.  ``int8``: the FFNs (experts and MTP's included) as int8 with
    their scales.
    """

    mtp: bool = False
    int8: bool = False


LAYERS_ONLY = Contents()


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The tensors of a checkpoint.

    ``required`` maps names to shapes.  ``ignored`` matches what may be there besides: MTP
    tensors that nothing reads, and the gate and up rows that transformers writes for zero
    experts.
    """

    required: Mapping[str, tuple[int, ...]]
    ignored: Callable[[str], bool]


def is_quantised(name: str) -> bool:
    """Whether a checkpoint in W8A8 holds the tensor ``name`` as int8."""
    return _QUANTISED.search(name) is not None and not name.endswith(SCALE)


def tensor_names(spec: ModelSpec, contents: Contents) -> TensorNames:
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
            required |= _block(spec, base, f".{half}", f"mlps.{half}")
        required[f"{base}.mlp.router.classifier.weight"] = (spec.router_width, hidden)
        required[f"{base}.mlp.router.e_score_correction_bias"] = (spec.router_width,)
        for expert in range(spec.n_routed_experts):
            required |= _ffn(f"{base}.mlp.experts.{expert}", hidden, spec.expert_ffn_hidden_size)
    if contents.mtp:
        required |= _mtp(spec)
    if contents.int8:
        required |= {
            name + SCALE: (shape[0], 1) for name, shape in required.items() if is_quantised(name)
        }
    return TensorNames(required, _ignored(spec, contents))


def _mtp(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    base, hidden = f"{MTP}layers.0", spec.hidden_size
    return {
        f"{MTP}embed_tokens.weight": (spec.vocab_size, hidden),
        f"{MTP}norm.weight": (hidden,),
        f"{base}.enorm.m.weight": (hidden,),
        f"{base}.hnorm.m.weight": (hidden,),
        f"{base}.eh_proj.weight": (hidden, 2 * hidden),
        **_block(spec, base, "", "transformer_layer.mlp"),
    }


def _block(spec: ModelSpec, base: str, half: str, ffn: str) -> dict[str, tuple[int, ...]]:
    """One attention and one dense FFN; ``half`` is .0, .1, or nothing in the MTP layer."""
    hidden, heads = spec.hidden_size, spec.num_attention_heads
    attention = f"{base}.self_attn{half}"
    kv_b = heads * (spec.qk_nope_head_dim + spec.v_head_dim)
    return {
        f"{base}.input_layernorm{half}.weight": (hidden,),
        f"{base}.post_attention_layernorm{half}.weight": (hidden,),
        f"{attention}.q_a_proj.weight": (spec.q_lora_rank, hidden),
        f"{attention}.q_a_layernorm.weight": (spec.q_lora_rank,),
        f"{attention}.q_b_proj.weight": (heads * spec.qk_head_dim, spec.q_lora_rank),
        f"{attention}.kv_a_proj_with_mqa.weight": (spec.kv_width, hidden),
        f"{attention}.kv_a_layernorm.weight": (spec.kv_lora_rank,),
        f"{attention}.kv_b_proj.weight": (kv_b, spec.kv_lora_rank),
        f"{attention}.o_proj.weight": (hidden, spec.o_proj_width),
        **_ffn(f"{base}.{ffn}", hidden, spec.ffn_hidden_size),
    }


def _ffn(base: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{base}.gate_proj.weight": (width, hidden),
        f"{base}.up_proj.weight": (width, hidden),
        f"{base}.down_proj.weight": (hidden, width),
    }


def _ignored(spec: ModelSpec, contents: Contents) -> Callable[[str], bool]:
    scale = f"({SCALE})?" if contents.int8 else ""
    expert = re.compile(
        rf"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up)_proj\.weight{scale}"
    )

    def ignored(name: str) -> bool:
        if name.startswith(MTP):
            return not contents.mtp
        match = expert.fullmatch(name)
        return (
            match is not None
            and int(match[1]) < spec.num_layers
            and spec.n_routed_experts <= int(match[2]) < spec.router_width
        )

    return ignored


def parameters(
    spec: ModelSpec, read: Read, contents: Contents, shard: Shard
) -> dict[str, torch.Tensor]:
    """The state of a rank's model: merged gate_up and w13, kv_b in its two parts.

    Tensors go one at a time from their files into their place: what is in memory beside the
    state itself are the pages of one of them.
    """
    ffn = _QuantisedFfn(read) if contents.int8 else _Ffn(read)
    own = _copying(read)
    state: dict[str, torch.Tensor] = {}
    if shard.holds_attention:
        state = {
            "embed": own("model.embed_tokens.weight"),
            "final_norm": own("model.norm.weight"),
            "lm_head": own("lm_head.weight"),
        }
    for layer in range(spec.num_layers):
        base = f"model.layers.{layer}"
        local: dict[str, torch.Tensor] = {}
        for half in (0, 1) if shard.holds_attention else ():
            local |= _attention(spec, read, base, f".{half}", f"attention.{half}")
            local |= ffn.dense(f"{base}.mlps.{half}", f"dense.{half}")
        if shard.holds_router:
            local["moe.router"] = own(f"{base}.mlp.router.classifier.weight")
            local["moe.correction_bias"] = own(f"{base}.mlp.router.e_score_correction_bias")
        if shard.holds_experts:
            local |= ffn.experts(f"{base}.mlp.experts", shard.experts)
        state |= {f"layers.{layer}.{name}": tensor for name, tensor in local.items()}
    if contents.mtp and shard.holds_attention:
        base = f"{MTP}layers.0"
        local = {
            "embed": own(f"{MTP}embed_tokens.weight"),
            "norm": own(f"{MTP}norm.weight"),
            "enorm": own(f"{base}.enorm.m.weight"),
            "hnorm": own(f"{base}.hnorm.m.weight"),
            "eh_proj": own(f"{base}.eh_proj.weight"),
            **_attention(spec, read, base, "", "attention"),
            **ffn.dense(f"{base}.transformer_layer.mlp", "dense"),
        }
        state |= {f"mtp.{name}": tensor for name, tensor in local.items()}
    return state


def _attention(
    spec: ModelSpec, read: Read, base: str, half: str, block: str
) -> dict[str, torch.Tensor]:
    attention, own = f"{base}.self_attn{half}", _copying(read)
    uk, uv = _key_and_value(spec, read(f"{attention}.kv_b_proj.weight"))
    tensors = {
        "input_norm": own(f"{base}.input_layernorm{half}.weight"),
        "q_a": own(f"{attention}.q_a_proj.weight"),
        "q_a_norm": own(f"{attention}.q_a_layernorm.weight"),
        "q_b": own(f"{attention}.q_b_proj.weight"),
        "kv_a": own(f"{attention}.kv_a_proj_with_mqa.weight"),
        "kv_a_norm": own(f"{attention}.kv_a_layernorm.weight"),
        "uk": uk,
        "uv": uv,
        "o_proj": own(f"{attention}.o_proj.weight"),
        "post_norm": own(f"{base}.post_attention_layernorm{half}.weight"),
    }
    return {f"{block}.{name}": tensor for name, tensor in tensors.items()}


def _copying(read: Read) -> Callable[[str], torch.Tensor]:
    return lambda name: read(name).copy()


def _key_and_value(spec: ModelSpec, kv_b: Stored) -> tuple[torch.Tensor, torch.Tensor]:
    """Per head kv_b has the rows that make its key, then those that make its value."""
    nope = spec.qk_nope_head_dim
    heads = kv_b.values.view(-1, nope + spec.v_head_dim, spec.kv_lora_rank)
    parts = heads[:, :nope], heads[:, nope:].transpose(1, 2)
    uk, uv = (replace(kv_b, values=part).copy() for part in parts)
    return uk, uv


class _Ffn:
    """Reads dense FFNs and experts."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def dense(self, base: str, block: str) -> dict[str, torch.Tensor]:
        """One FFN: ``gate_up`` [2 width, hidden] and ``down`` [hidden, width]."""
        gate_up, down = self._merged([base], "weight")
        return {f"{block}.gate_up": gate_up[0], f"{block}.down": down[0]}

    def experts(self, base: str, held: range) -> dict[str, torch.Tensor]:
        """Experts of a layer, stacked: ``w13`` and ``w2``."""
        w13, w2 = self._merged([f"{base}.{expert}" for expert in held], "weight")
        return {"moe.w13": w13, "moe.w2": w2}

    def _merged(self, bases: list[str], kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Gate over up [FFNs, 2 width, ...], and down [FFNs, hidden, ...]."""
        merged: list[torch.Tensor] = []
        for parts in (("gate", "up"), ("down",)):
            whole = None
            for index, base in enumerate(bases):
                for place, part in enumerate(parts):
                    stored = self._read(f"{base}.{part}_proj.{kind}")
                    height, *rest = stored.values.shape
                    if whole is None:
                        shape = (len(bases), len(parts) * height, *rest)
                        whole = torch.empty(shape, dtype=stored.dtype)
                    whole[index, place * height : (place + 1) * height] = stored.values
            assert whole is not None
            merged.append(whole)
        return merged[0], merged[1]


class _QuantisedFfn(_Ffn):
    """The same in int8, each weight with its scales [..., rows]."""

    def dense(self, base: str, block: str) -> dict[str, torch.Tensor]:
        """The FFN and its scales."""
        gate_up, down = self._merged([base], "weight" + SCALE)
        return {
            **super().dense(base, block),
            f"{block}.gate_up_scale": gate_up[0, :, 0],
            f"{block}.down_scale": down[0, :, 0],
        }

    def experts(self, base: str, held: range) -> dict[str, torch.Tensor]:
        """The experts and their scales."""
        bases = [f"{base}.{expert}" for expert in held]
        w13, w2 = self._merged(bases, "weight" + SCALE)
        return {
            **super().experts(base, held),
            "moe.w13_scale": w13[..., 0],
            "moe.w2_scale": w2[..., 0],
        }
