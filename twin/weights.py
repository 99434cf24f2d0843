"""Sizes of weights on one die: what a prefetch can move and what HBM must hold.

Element sizes: fp32 takes 4 bytes everywhere; else 2 (bf16), except the router (always
fp32) and, under w8a8, the dense FFNs (MTP's included) and the experts (int8).  int8
weights come with one fp32 scale per output channel; scales lie in memory but a prefetch
covers only the int8 data.
"""

from __future__ import annotations

from dataclasses import dataclass

from hardware_models.errors import InputError
from twin.deployment import Deployment, Role
from twin.model_spec import ModelSpec

_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class WeightItem:
    """``count`` equal tensors of ``bytes`` each on one die, scales included."""

    name: str
    count: int
    bytes: int

    @property
    def total_bytes(self) -> int:
        """All of them together."""
        return self.count * self.bytes


@dataclass(frozen=True, slots=True)
class _Shape:
    """Elements on one die, and output channels (summed over experts) that carry a scale."""

    elements: int
    channels: int


def weight_bytes(
    model: ModelSpec, deployment: Deployment, weight: str, redundant_experts: int = 0
) -> int:
    """Per-die bytes of one weight's data under its schedule name (without ``next.``).

    ``moe.w13`` and ``moe.w2`` count all local experts, redundant copies included.

    Raises:
        InputError: no weight has this name.
    """
    shape = _shape(model, deployment, weight, redundant_experts)
    return shape.elements * _element_bytes(deployment, weight)


def role_weights(
    model: ModelSpec,
    deployment: Deployment,
    role: Role,
    next_n: int = 0,
    redundant_experts: int = 0,
) -> tuple[WeightItem, ...]:
    """Everything that one die of ``role`` keeps in memory, MTP only where next_n > 0.

    The halves of a layer share an item: ``attention.q_a`` counts both attentions of all layers.
    """

    def item(name: str, count: int = 1) -> WeightItem:
        shape = _shape(model, deployment, name, redundant_experts)
        size = shape.elements * _element_bytes(deployment, name)
        scales = shape.channels * _SCALE_BYTES if _is_int8(deployment, name) else 0
        return WeightItem(name, count, size + scales)

    layers = model.num_layers
    items: list[WeightItem] = []
    if role != "ffn":
        blocks = (*_ATTENTION, *_DENSE, "norms")
        items += [item(name, 2 * layers) for name in blocks]
        items += [item("embed"), item("lm_head"), item("final_norm")]
        if next_n:
            items += [item(f"mtp.{name}") for name in (*blocks, "eh_proj", "embed", "outer_norms")]
    if role == deployment.router_role:
        items += [item(f"moe.{name}", layers) for name in ("router", "correction_bias")]
    if role == deployment.moe_role:
        items += [item(f"moe.{name}", layers) for name in ("w13", "w2")]
    return tuple(items)


_ATTENTION = tuple(f"attention.{name}" for name in ("q_a", "q_b", "kv_a", "uk", "uv", "o_proj"))
_DENSE = ("dense.gate_up", "dense.down")


def _element_bytes(deployment: Deployment, weight: str) -> int:
    if deployment.quantisation == "fp32" or weight in ("moe.router", "moe.correction_bias"):
        return 4
    return 1 if _is_int8(deployment, weight) else 2


def _is_int8(deployment: Deployment, weight: str) -> bool:
    block = weight.removeprefix("mtp.").partition(".")[0]
    is_expert = weight in ("moe.w13", "moe.w2")
    return deployment.quantisation == "w8a8" and (block == "dense" or is_expert)


def _shape(model: ModelSpec, deployment: Deployment, weight: str, redundant_experts: int) -> _Shape:
    shapes = _shapes(model, deployment, redundant_experts)
    try:
        return shapes[_key(weight)]
    except KeyError:
        known = ", ".join(shapes)
        hint = "attention and dense also with .0 or .1, or behind mtp."
        raise InputError("weight", weight, f"{known} ({hint})") from None


def _key(weight: str) -> str:
    """The size's key: the halves of a layer are alike, and the MTP layer's blocks with them."""
    owner, _, local = weight.partition(".")
    if owner == "mtp":
        return local if local.startswith(("attention.", "dense.", "norms")) else weight
    is_half = owner in ("attention", "dense") and local[:2] in ("0.", "1.")
    return f"{owner}.{local[2:]}" if is_half else weight


def _shapes(model: ModelSpec, deployment: Deployment, redundant_experts: int) -> dict[str, _Shape]:
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    expert = model.expert_ffn_hidden_size
    role = deployment.attention
    heads = model.num_attention_heads // role.attention_tp
    dense = ffn // role.dense_tp
    plain = {
        "attention.q_a": hidden * model.q_lora_rank,
        "attention.q_b": model.q_lora_rank * heads * model.qk_head_dim,
        "attention.kv_a": hidden * model.kv_width,
        "attention.uk": heads * model.qk_nope_head_dim * model.kv_lora_rank,
        "attention.uv": heads * model.v_head_dim * model.kv_lora_rank,
        "attention.o_proj": model.o_proj_width // role.o_proj_tp * hidden,
        # Input and post norm of a half, and the norms of the query and KV latents.
        "norms": 2 * hidden + model.q_lora_rank + model.kv_lora_rank,
        "moe.router": hidden * model.router_width,
        "moe.correction_bias": model.router_width,
        "lm_head": model.vocab_size // role.lm_head_tp * hidden,
        "embed": model.vocab_size // role.embed_tp * hidden,
        "final_norm": hidden,
        "mtp.embed": model.vocab_size // role.embed_tp * hidden,
        "mtp.eh_proj": 2 * hidden * hidden,
        # enorm, hnorm and the MTP head's closing norm.
        "mtp.outer_norms": 3 * hidden,
    }
    shapes = {name: _Shape(elements, 0) for name, elements in plain.items()}
    shapes["dense.gate_up"] = _Shape(hidden * 2 * dense, 2 * dense)
    shapes["dense.down"] = _Shape(dense * hidden, hidden)
    local = (model.n_routed_experts + redundant_experts) // deployment.moe.ep
    shapes["moe.w13"] = _Shape(local * hidden * 2 * expert, local * 2 * expert)
    shapes["moe.w2"] = _Shape(local * expert * hidden, local * hidden)
    return shapes
