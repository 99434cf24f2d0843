"""The name space of ops and weights: which exist where, and in which order they are issued.

One name space serves schedules, step graphs and records: ``layer.L.`` + an op or weight,
``layer.L.mbM.`` where there are several micro-batches.
The functions here give the local names (without the layer).  In a prefetch, ``next.``
before a weight means the following layer's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from twin.deployment import Deployment, Quantisation, Role, RoleDeployment

NEXT = "next."
MOE_INPUT = "attention.0.post_norm"
"""The op whose output feeds the MoE branch."""
JOIN = "add"
"""The op at which the MoE branch and the main branch of a layer meet."""
MOE_OPS = tuple(
    f"moe.{op}"
    for op in (
        "cast",
        "router_matmul",
        "topk",
        "dispatch",
        "gmm1",
        "swiglu",
        "gmm2",
        "combine",
    )
)
ROUTER_OPS = MOE_OPS[: MOE_OPS.index("moe.dispatch")]
ROUTED_HERE_OPS = (*ROUTER_OPS, "moe.fill")
"""Where attention dies route: the last op puts real experts' ids in place of zero experts'."""
EXPERT_OPS = MOE_OPS[MOE_OPS.index("moe.dispatch") + 1 : MOE_OPS.index("moe.combine")]
COMPUTE_STREAMS = ("main", "moe")
HOST_STREAM = "host"
"""The twin's own: what the host of a die does one after the other in eager mode."""
LAUNCH = ".launch"
"""Ending of a host op: the launch of the op that it is named after."""

_ATTENTION_WEIGHTS = ("q_a", "q_b", "kv_a", "uk", "uv", "o_proj")
_DENSE_WEIGHTS = ("gate_up", "down")
_HCCL = (
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "lse_all_to_all",
    "all_reduce",
)


def is_hccl_collective(op: str) -> bool:
    """Whether an op is an HCCL collective (dispatch and combine are not)."""
    return op.rpartition(".")[2] in _HCCL


def is_communication(op: str) -> bool:
    """Whether an op of a prefill layer exchanges data with other dies."""
    last = op.rpartition(".")[2]
    return last in _HCCL or last.endswith("_all_to_all")


def attention_ops(block: str, role: RoleDeployment) -> tuple[str, ...]:
    """Ops of one MLA block (for example ``attention.1``) in issue order.

    With o_proj split over dies, heads are exchanged before it and rows summed behind it;
    with the KV cache split (kvp), partial results are exchanged and merged first, and rows
    stay on all dies of the group.  With heads split (attention_tp) the rows that were
    scattered over the group are gathered first, and there are no heads to exchange.
    """
    ops = ["input_norm"]
    ops += ["all_gather"] if role.attention_tp > 1 else []
    ops += ["prolog", "attention", "uv"]
    if role.kvp > 1:
        ops += ["all_to_all", "lse_all_to_all", "merge", "o_proj", "all_reduce"]
    elif role.o_proj_tp > 1:
        ops += ["all_to_all"] if role.attention_tp == 1 else []
        ops += ["o_proj", "reduce_scatter"]
    else:
        ops += ["o_proj"]
    return tuple(f"{block}.{op}" for op in [*ops, "post_norm"])


def dense_ops(block: str, role: RoleDeployment, quantisation: Quantisation) -> tuple[str, ...]:
    """Ops of one dense FFN (for example ``dense.0``) in issue order.

    Split over dies that hold rows of their own, it gathers them and scatters the sums; dies
    of a KVP group hold the same rows, so there the sums alone are exchanged.
    """
    is_split, is_replicated = role.dense_tp > 1, role.kvp > 1
    ops = ["all_gather"] if is_split and not is_replicated else []
    ops += ["quant"] if quantisation == "w8a8" else []
    ops += ["gate_up", "swiglu", "down"]
    if is_split:
        ops += ["all_reduce" if is_replicated else "reduce_scatter"]
    return tuple(f"{block}.{op}" for op in ops)


def main_ops(deployment: Deployment, role: Role) -> tuple[str, ...]:
    """A layer's ops on the main stream of ``role``, the MoE branch of a colocated die apart.

    Under the direct transport attention dies route, and the transfers are the exchange.
    """
    if role == "ffn":
        return EXPERT_OPS if deployment.is_direct else MOE_OPS
    sizes, quantisation = deployment.attention, deployment.quantisation
    return (
        *attention_ops("attention.0", sizes),
        *(ROUTED_HERE_OPS if deployment.is_direct else ()),
        *dense_ops("dense.0", sizes, quantisation),
        *attention_ops("attention.1", sizes),
        *dense_ops("dense.1", sizes, quantisation),
        JOIN,
    )


def fork_op(deployment: Deployment) -> str:
    """The main op of a layer behind which the MoE branch, or its transfers, begins."""
    return ROUTED_HERE_OPS[-1] if deployment.is_direct else MOE_INPUT


def layer_chains(
    deployment: Deployment, role: Role, *, moe_apart: bool = True
) -> tuple[tuple[str, ...], ...]:
    """The op chains of one layer: within a chain the order is program order.

    The MoE branch (or its transfers, with AFD) runs beside the dense branch, so a layer
    of a role that holds attention has two chains with a common head and end.  On a
    colocated die without a moe stream (``moe_apart`` False) the branch runs on main: one chain.
    """
    ops = main_ops(deployment, role)
    receive = ("afd.wait", "afd.recv") if deployment.is_direct else ("afd.recv",)
    if role == "ffn":
        return ((*receive, *ops, "afd.send"),)
    fork = ops.index(fork_op(deployment)) + 1
    if role == "colocated" and not moe_apart:
        return ((*ops[:fork], *MOE_OPS, *ops[fork:]),)
    branch = MOE_OPS if role == "colocated" else ("afd.send", *receive)
    return (ops, (*ops[:fork], *branch, JOIN))


def outside_ops(deployment: Deployment, next_n: int) -> tuple[str, ...]:
    """Ops behind the layers, MTP passes included, in issue order."""
    role = deployment.attention
    head = ["lm_head"]
    if role.lm_head_tp > 1:
        head = ["lm_head_all_gather", "lm_head", "lm_head_all_to_all"]
    ops = ["final_norm", *head, "sample"]
    for number in range(next_n):
        embed = ["embed"] if role.embed_tp == 1 else ["embed", "embed_reduce_scatter"]
        local = [
            *embed,
            "norms",
            "eh_proj",
            *attention_ops("attention", role),
            *dense_ops("dense", role, deployment.quantisation),
            "norm",
            *head,
            "sample",
        ]
        ops += [f"mtp.{number}.{op}" for op in local]
    return tuple(ops)


_CHUNK_OPS = (
    "init_routing",
    "count_all_to_all",
    "read_counts",
    "token_all_to_all",
    "re_routing",
    "gmm1",
    "swiglu",
    "gmm2",
    "restore_order",
    "back_all_to_all",
    "finalize_routing",
)


def prefill_attention_ops(block: str, role: RoleDeployment) -> tuple[str, ...]:
    """Ops of one MLA block in prefill, in issue order: un-absorbed, its projections apart.

    ``kv_b`` is uk and uv side by side; ``kv_norm_rope_cache`` writes the latent to the cache.
    """
    decode = attention_ops(block, role)
    inside = ("q_a", "q_norm", "q_b", "rope", "kv_a", "kv_norm_rope_cache", "kv_b", "attention")
    start = decode.index(f"{block}.prolog")
    behind = decode[decode.index(f"{block}.uv") + 1 :]
    return (*decode[:start], *(f"{block}.{op}" for op in inside), *behind)


def prefill_chunk_ops(number: int, chunks: int) -> tuple[str, ...]:
    """Ops of one MoE chunk: ``moe.chunkN.`` + op where there is more than one."""
    block = "moe" if chunks == 1 else f"moe.chunk{number}"
    return tuple(f"{block}.{op}" for op in _CHUNK_OPS)


def prefill_layer_ops(deployment: Deployment, chunks: int) -> tuple[str, ...]:
    """A prefill layer's ops in issue order: one chain, the MoE branch behind its input."""
    sizes, quantisation = deployment.attention, deployment.quantisation
    first, second = (prefill_attention_ops(f"attention.{half}", sizes) for half in (0, 1))
    routed = [op for number in range(chunks) for op in prefill_chunk_ops(number, chunks)]
    return (
        *first,
        *ROUTER_OPS,
        *routed,
        *dense_ops("dense.0", sizes, quantisation),
        *second,
        *dense_ops("dense.1", sizes, quantisation),
        JOIN,
    )


def prefill_outside_ops(deployment: Deployment) -> tuple[str, ...]:
    """Ops behind the layers in prefill: only the last token of each sequence goes on."""
    return ("last_tokens", *outside_ops(deployment, 0))


def layer_weights(deployment: Deployment, role: Role) -> tuple[str, ...]:
    """Weights that each layer of ``role`` reads whole: attention and dense FFN, then MoE."""
    router = ("moe.router",) if role == deployment.router_role else ()
    moe = (*router, *(("moe.w13", "moe.w2") if role == deployment.moe_role else ()))
    if role == "ffn":
        return moe
    halves: list[str] = []
    for half in (0, 1):
        halves += [f"attention.{half}.{weight}" for weight in _ATTENTION_WEIGHTS]
        halves += [f"dense.{half}.{weight}" for weight in _DENSE_WEIGHTS]
    return (*halves, *moe)


def outside_weights(role: Role, next_n: int) -> tuple[str, ...]:
    """Weights of ``role`` outside the layers that matmuls read: lm_head and the MTP layer's."""
    if role == "ffn":
        return ()
    if next_n == 0:
        return ("lm_head",)
    return (
        "lm_head",
        "mtp.eh_proj",
        *(f"mtp.attention.{weight}" for weight in _ATTENTION_WEIGHTS),
        *(f"mtp.dense.{weight}" for weight in _DENSE_WEIGHTS),
    )


_PASS = re.compile(r"layer\.(\d+)\.(?:mb(\d+)\.)?")


@dataclass(frozen=True, slots=True)
class FullName:
    """A step's name of an op or weight taken apart; ``layer`` is ``None`` outside the layers."""

    layer: int | None
    micro_batch: int
    local: str


def parse_name(name: str) -> FullName:
    """``layer.3.mb1.moe.gmm1`` is ``moe.gmm1`` of layer 3 and micro-batch 1."""
    found = _PASS.match(name)
    if found is None:
        return FullName(None, 0, name)
    return FullName(int(found[1]), int(found[2] or 0), name[found.end() :])


_CONSUMERS = {
    **dict.fromkeys(("q_a", "q_b", "kv_a", "uk"), "prolog"),
    "router": "router_matmul",
    "w13": "gmm1",
    "w2": "gmm2",
}


def consumer(weight: str) -> str:
    """The op that reads a weight; for ``mtp.*`` its name within an MTP pass.

    ``attention.0.q_b`` -> ``attention.0.prolog``; ``mtp.dense.down`` -> ``dense.down``.
    """
    block, _, last = weight.removeprefix("mtp.").rpartition(".")
    op = _CONSUMERS.get(last, last)
    return f"{block}.{op}" if block else op


@dataclass(frozen=True, slots=True)
class WeightName:
    """A weight as a prefetch names it: this layer's, or the following layer's."""

    weight: str
    is_next: bool


def parse_weight(text: str) -> WeightName:
    """Split off ``next.``: ``next.moe.w2`` is the following layer's ``moe.w2``."""
    return WeightName(text.removeprefix(NEXT), text.startswith(NEXT))
