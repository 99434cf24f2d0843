"""What a rank owns of the model: heads, columns, experts and vocabulary, as ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime_npu.parallel.groups import GroupName, members, place_of
from twin.deployment import Deployment
from twin.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """The parts of the model on one rank.

    ``heads`` are those whose queries it computes in decode, ``o_proj`` the columns of o_proj,
    ``dense`` the inner channels of the dense FFNs, ``lm_head`` and ``embed`` token ids.
    ``holds_attention``, ``holds_experts`` and ``holds_router`` say what its role has at all,
    ``int8_ffns`` whether FFNs are held in int8, with scales.
    """

    heads: range
    o_proj: range
    dense: range
    experts: range
    lm_head: range
    embed: range
    holds_attention: bool
    holds_experts: bool
    holds_router: bool
    int8_ffns: bool


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
        holds_router=role == deployment.router_role,
        int8_ffns=deployment.quantisation == "w8a8",
    )


_DENSE = re.compile(r"(mlps\.[01]|transformer_layer\.mlp)\.(gate|up|down)_proj\.(weight\w*)$")


def owned(shard: Shard, spec: ModelSpec, name: str) -> tuple[slice, ...]:
    """What the rank reads of the checkpoint tensor ``name``: a slice for each leading axis.

    No slice: all of it.
    """
    by_ending = {
        "lm_head": (_rows(shard.lm_head),),
        "embed_tokens": (_rows(shard.embed),),
        "q_b_proj": (_rows(shard.heads, spec.qk_head_dim),),
        "kv_b_proj": (_rows(shard.heads, spec.qk_nope_head_dim + spec.v_head_dim),),
        "o_proj": (slice(None), _rows(shard.o_proj)),
    }
    ending = name.removesuffix(".weight").rpartition(".")[2]
    if ending in by_ending:
        return by_ending[ending]
    dense = _DENSE.search(name)
    if dense is None:
        return ()
    if dense[2] != "down":
        return (_rows(shard.dense),)
    # Scales of down belong to its rows, and every rank has all of these.
    return (slice(None), _rows(shard.dense)) if dense[3] == "weight" else ()


def _rows(part: range, width: int = 1) -> slice:
    return slice(part.start * width, part.stop * width)
