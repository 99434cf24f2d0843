"""ModelSpec: the architecture numbers of a LongCat-Flash family model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Architecture of a shortcut-connected MoE (ScMoE) model with MLA attention.

    Field names are those of the checkpoint's ``config.json``.  Each of ``num_layers``
    layers holds two attentions, two dense FFNs and one MoE; ids at or above
    ``n_routed_experts`` are zero experts (identity).
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    ffn_hidden_size: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    zero_expert_num: int
    moe_topk: int
    expert_ffn_hidden_size: int
    routed_scaling_factor: float = 6.0
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1e7
    max_position_embeddings: int = 131072
    mla_scale_q_lora: bool = True
    mla_scale_kv_lora: bool = True

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head: the nope and the rope part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def router_width(self) -> int:
        """Width of the router: routed plus zero experts."""
        return self.n_routed_experts + self.zero_expert_num

    @property
    def real_topk(self) -> float:
        """Mean number of real experts a token reaches when ids are dealt evenly."""
        return self.moe_topk * self.n_routed_experts / self.router_width

    @property
    def o_proj_width(self) -> int:
        """Input width of the attention's output projection (all heads)."""
        return self.num_attention_heads * self.v_head_dim

    @property
    def kv_width(self) -> int:
        """Elements of the latent KV cache per token and attention (latent and rope part)."""
        return self.kv_lora_rank + self.qk_rope_head_dim
