"""What a rank owns of the model: heads, columns, experts and vocabulary, as ranges."""

from __future__ import annotations

from dataclasses import dataclass

from runtime_npu.parallel.groups import GroupName, members, place_of
from twin.deployment import Deployment
from twin.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """The parts of the model on one rank.

    ``heads`` are those whose queries it computes in decode, ``o_proj`` the columns of o_proj,
    ``dense`` the inner channels of the dense FFNs, ``lm_head`` and ``embed`` token ids.
    ``holds_attention`` and ``holds_experts`` say what its role has at all.
    """

    heads: range
    o_proj: range
    dense: range
    experts: range
    lm_head: range
    embed: range
    holds_attention: bool
    holds_experts: bool


def shard_of(spec: ModelSpec, deployment: Deployment, rank: int) -> Shard:
    """The shard of ``rank``: equal consecutive parts in the order of its groups' ranks."""

    def part(total: int, group: GroupName) -> range:
        own = members(deployment, group, rank)
        size = total // len(own)
        first = own.index(rank) * size
        return range(first, first + size)

    role = place_of(deployment, rank).role
    return Shard(
        heads=part(spec.num_attention_heads, "attention_tp"),
        o_proj=part(spec.o_proj_width, "o_proj_tp"),
        dense=part(spec.ffn_hidden_size, "dense_tp"),
        experts=part(spec.n_routed_experts, "ep"),
        lm_head=part(spec.vocab_size, "lm_head_tp"),
        embed=part(spec.vocab_size, "embed_tp"),
        holds_attention=role != "ffn",
        holds_experts=role != "attention",
    )
