"""The MTP head in numpy, written from the formulas: one row at a time, un-absorbed, float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from twin.model_spec import ModelSpec

Array = np.ndarray


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


class MtpOracle:
    """Keys and values of each position it was given, in a cache per pass."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self.spec = spec
        self.weights: dict[str, Array] = {}
        for file in folder.glob("*.safetensors"):
            self.weights |= {n: t.astype(np.float64) for n, t in load_file(file).items()}
        self.keys: dict[tuple[int, int], Array] = {}
        self.values: dict[tuple[int, int], Array] = {}

    def weight(self, name: str) -> Array:
        return self.weights[f"model.mtp.layers.0.{name}.weight"]

    def norm(self, x: Array, weight: Array, eps: float | None = None) -> Array:
        eps = self.spec.rms_norm_eps if eps is None else eps
        return weight * x / np.sqrt((x * x).mean() + eps)

    def rotated(self, x: Array, position: int) -> Array:
        """Neighbours as complex numbers, turned by position x theta^(-2 i / width)."""
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        width = x.shape[-1]
        speed = self.spec.rope_theta ** (-np.arange(0, width, 2) / width)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * position * speed)
        return np.stack((turned.real, turned.imag), -1).reshape(x.shape)

    def attention(self, number: int, x: Array, position: int) -> Array:
        s, heads = self.spec, self.spec.num_attention_heads
        nope, rope, v = s.qk_nope_head_dim, s.qk_rope_head_dim, s.v_head_dim
        latent_q = self.norm(
            self.weight("self_attn.q_a_proj") @ x, self.weight("self_attn.q_a_layernorm"), 1e-6
        )
        q = (self.weight("self_attn.q_b_proj") @ latent_q).reshape(heads, nope + rope)
        q = q * np.sqrt(s.hidden_size / s.q_lora_rank)
        kv = self.weight("self_attn.kv_a_proj_with_mqa") @ x
        latent = self.norm(
            kv[: s.kv_lora_rank], self.weight("self_attn.kv_a_layernorm"), 1e-6
        ) * np.sqrt(s.hidden_size / s.kv_lora_rank)
        both = (self.weight("self_attn.kv_b_proj") @ latent).reshape(heads, nope + v)
        shared = np.tile(self.rotated(kv[s.kv_lora_rank :], position), (heads, 1))
        self.keys[number, position] = np.concatenate((both[:, :nope], shared), -1)
        self.values[number, position] = both[:, nope:]
        query = np.concatenate((q[:, :nope], self.rotated(q[:, nope:], position)), -1)
        keys = np.stack([self.keys[number, at] for at in range(position + 1)], 1)
        values = np.stack([self.values[number, at] for at in range(position + 1)], 1)
        scores = np.einsum("hd,htd->ht", query, keys) / np.sqrt(nope + rope)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("ht,htv->hv", weights, values).reshape(-1)
        return self.weight("self_attn.o_proj") @ attended

    def row(self, number: int, token: int, hidden: Array, position: int) -> tuple[Array, Array]:
        """Hidden state and logits of a row that takes ``token`` and ``hidden``."""
        embedded = self.weights["model.mtp.embed_tokens.weight"][token]
        joined = np.concatenate(
            (self.norm(embedded, self.weight("enorm.m")), self.norm(hidden, self.weight("hnorm.m")))
        )
        x = self.weight("eh_proj") @ joined
        x = x + self.attention(number, self.norm(x, self.weight("input_layernorm")), position)
        normed = self.norm(x, self.weight("post_attention_layernorm"))
        mlp = "transformer_layer.mlp"
        inner = silu(self.weight(f"{mlp}.gate_proj") @ normed)
        inner = inner * (self.weight(f"{mlp}.up_proj") @ normed)
        x = x + self.weight(f"{mlp}.down_proj") @ inner
        out = self.norm(x, self.weights["model.mtp.norm.weight"])
        return out, self.weights["lm_head.weight"] @ out
