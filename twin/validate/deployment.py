"""Rules of the deployment: roles, divisibility, op limits, AFD transports."""

from __future__ import annotations

import math

from twin.deployment import Deployment, RoleDeployment, Transport
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.validate.rules import require

MOST_EXPERTS = 1024
MOST_ROWS = 512
MOST_TOPK = 16
EP_RANGE = (2, 768)
HIDDEN_RANGE = (1024, 8192)
"""Limits of the fused dispatch and combine ops on A3 (npu_moe_distribute_dispatch_v2)."""

MOST_PARTS = 16
MERGE_WIDTH_RANGE = (8, 512)
MERGE_WIDTH_STEP = 8
"""Limits of the op that merges the partial results of a split KV cache (npu_attention_update)."""

INTEGER_RATIO: tuple[Transport, ...] = ("sdma_pairs", "camp2p")
"""Transports in which one FFN die serves a whole number of attention dies."""

_GROUPS = ("attention_tp", "o_proj_tp", "dense_tp", "kvp", "lm_head_tp", "embed_tp")


def check_deployment(schedule: Schedule, model: ModelSpec) -> None:
    """Roles and sizes against the model and against each other.

    Raises:
        InputError: see :func:`twin.validate.validate_schedule`.
    """
    deployment = schedule.deployment
    _check_roles(deployment)
    for name, role in deployment.roles.items():
        _check_groups(f"deployment.roles.{name}", role)
    _check_attention(deployment, model)
    if deployment.is_afd:
        _check_transport(deployment)
    _check_batch(schedule)
    _check_experts(schedule, model)
    _check_dispatch(schedule, model)


def _check_roles(deployment: Deployment) -> None:
    roles = sorted(deployment.roles)
    require(
        roles in (["colocated"], ["attention", "ffn"]),
        "deployment.roles",
        roles,
        "colocated alone, or attention and ffn",
    )
    require(
        deployment.is_afd == (deployment.afd is not None),
        "deployment.afd",
        deployment.afd,
        "a section exactly where the roles are attention and ffn",
    )
    if deployment.is_afd:
        ep = deployment.roles["attention"].ep
        require(ep == 1, "deployment.roles.attention.ep", ep, "1: the experts are on ffn dies")
        for name in _GROUPS:
            size = getattr(deployment.roles["ffn"], name)
            field = f"deployment.roles.ffn.{name}"
            require(size == 1, field, size, "1: attention and dense FFN are on attention dies")


def _check_groups(field: str, role: RoleDeployment) -> None:
    require(role.dies >= 1, f"{field}.dies", role.dies, "a whole number from 1")
    for name in (*_GROUPS, "ep"):
        size = getattr(role, name)
        require(
            size >= 1 and role.dies % size == 0,
            f"{field}.{name}",
            size,
            f"a size from 1 that divides the role's {role.dies} dies",
        )


def _check_attention(deployment: Deployment, model: ModelSpec) -> None:
    role = deployment.attention
    field = f"deployment.roles.{deployment.attention_role}"
    widths = (
        ("attention_tp", "attention heads", model.num_attention_heads),
        ("kvp", "attention heads", model.num_attention_heads),
        ("o_proj_tp", "o_proj width", model.o_proj_width),
        ("dense_tp", "ffn_hidden_size", model.ffn_hidden_size),
        ("lm_head_tp", "vocab_size", model.vocab_size),
        ("embed_tp", "vocab_size", model.vocab_size),
    )
    for name, what, width in widths:
        size = getattr(role, name)
        require(width % size == 0, f"{field}.{name}", size, f"a divisor of the {what} {width}")
    if role.attention_tp > 1:
        require(
            role.o_proj_tp == role.attention_tp,
            f"{field}.o_proj_tp",
            role.o_proj_tp,
            f"attention_tp ({role.attention_tp}) where that is above 1",
        )
    if role.kvp > 1:
        require(
            role.attention_tp == 1,
            f"{field}.attention_tp",
            role.attention_tp,
            f"1 where kvp ({role.kvp}) is above 1: every die of its group computes all heads",
        )
        require(
            role.o_proj_tp == role.kvp,
            f"{field}.o_proj_tp",
            role.o_proj_tp,
            f"kvp ({role.kvp}) where that is above 1",
        )
        require(
            role.kvp % role.dense_tp == 0,
            f"{field}.dense_tp",
            role.dense_tp,
            f"a divisor of kvp ({role.kvp}): a dense group is dies that hold the same rows",
        )
        if _uses_fused_ops(deployment):
            _check_merge(field, role, model)


def _uses_fused_ops(deployment: Deployment) -> bool:
    """Whether the limits of the NPU's fused ops bind: these ops have no fp32.

    fp32 is for CPUs, where plain code computes the same model at any size.
    """
    return deployment.quantisation != "fp32"


def _check_merge(field: str, role: RoleDeployment, model: ModelSpec) -> None:
    require(role.kvp <= MOST_PARTS, f"{field}.kvp", role.kvp, f"at most {MOST_PARTS} parts")
    low, high = MERGE_WIDTH_RANGE
    width = model.v_head_dim
    require(
        low <= width <= high and width % MERGE_WIDTH_STEP == 0,
        "model.v_head_dim",
        width,
        f"{low} to {high} in steps of {MERGE_WIDTH_STEP} where kvp is above 1",
    )


def _check_transport(deployment: Deployment) -> None:
    afd = deployment.afd
    assert afd is not None
    attention, ffn = deployment.roles["attention"].dies, deployment.roles["ffn"].dies
    if afd.transport in INTEGER_RATIO:
        common = math.gcd(attention, ffn)
        require(
            attention % ffn == 0,
            "deployment.roles",
            f"{attention // common}:{ffn // common}",
            f"under {afd.transport} a whole number of attention dies for each FFN die "
            f"(A:F = r:1; here {attention} and {ffn} dies)",
        )
    if afd.transport == "camp2p":
        allowed = "1 or 2 under camp2p"
        require(
            afd.micro_batches in (1, 2), "deployment.afd.micro_batches", afd.micro_batches, allowed
        )


def _sequences(schedule: Schedule) -> int:
    """Sequences of the busiest attention group."""
    groups = schedule.deployment.attention.attention_groups
    return math.ceil(schedule.workload.global_batch / groups)


def _check_batch(schedule: Schedule) -> None:
    deployment, workload = schedule.deployment, schedule.workload
    role = deployment.attention
    parallel = role.attention_groups
    require(
        workload.global_batch >= parallel,
        "workload.global_batch",
        workload.global_batch,
        f"at least one sequence for each of the {parallel} attention groups",
    )
    require(
        role.kvp == 1 or workload.next_n == 0,
        "workload.next_n",
        workload.next_n,
        f"0 where the KV cache is split (kvp {role.kvp}): the recipe's KVP has no MTP",
    )
    if deployment.afd is not None:
        parts, sequences = deployment.afd.micro_batches, _sequences(schedule)
        require(
            1 <= parts <= sequences,
            "deployment.afd.micro_batches",
            parts,
            f"1 to {sequences}, the sequences of an attention group",
        )


def _check_experts(schedule: Schedule, model: ModelSpec) -> None:
    deployment, redundant = schedule.deployment, schedule.moe.redundant_experts
    require(redundant >= 0, "moe.redundant_experts", redundant, "a whole number from 0")
    role, field = (
        deployment.moe,
        f"deployment.roles.{deployment.moe_role}.ep",
    )
    total = model.n_routed_experts + redundant
    require(
        role.ep == role.dies, field, role.ep, f"all {role.dies} dies of the role that holds experts"
    )
    require(
        total % role.ep == 0,
        field,
        role.ep,
        f"a divisor of the {total} experts "
        f"({model.n_routed_experts} routed, {redundant} redundant)",
    )
    require(
        not deployment.is_direct or total >= 2 * model.moe_topk,
        "deployment.afd.transport",
        "direct",
        f"a transport other than direct: fillers for a row's {model.moe_topk} choices are found "
        f"among twice as many experts, and there are {total}",
    )
    require(
        total <= MOST_EXPERTS,
        "moe.redundant_experts",
        redundant,
        f"at most {MOST_EXPERTS} experts in all",
    )


def _check_dispatch(schedule: Schedule, model: ModelSpec) -> None:
    """Limits of the fused exchange; a single die exchanges nothing, prefill routes twice."""
    deployment = schedule.deployment
    alone = deployment.total_dies == 1
    if alone or schedule.workload.is_prefill or not _uses_fused_ops(deployment):
        return
    ep, low, high = deployment.moe.ep, *EP_RANGE
    field = f"deployment.roles.{deployment.moe_role}.ep"
    # Direct transfers are no exchange among the experts' dies: there may be one.
    low = 1 if deployment.is_direct else low
    require(low <= ep <= high, field, ep, f"{low} to {high}, the range of dispatch")
    require(model.moe_topk <= MOST_TOPK, "model.moe_topk", model.moe_topk, f"at most {MOST_TOPK}")
    low, high = HIDDEN_RANGE
    require(
        low <= model.hidden_size <= high,
        "model.hidden_size",
        model.hidden_size,
        f"{low} to {high}, the range of dispatch",
    )
    parts = deployment.afd.micro_batches if deployment.afd else 1
    sequences = math.ceil(_sequences(schedule) / parts)
    rows = sequences * schedule.workload.rows_per_sequence
    # Rows of a TP group lie scattered over its dies; dies of a KVP group each send all rows.
    rows = math.ceil(rows / deployment.attention.attention_tp)
    # Direct transfers take each attention die's rows apart (assumed to have the same limits).
    rows *= 1 if deployment.is_direct else deployment.attention_ratio
    require(
        rows <= MOST_ROWS,
        "workload.global_batch",
        schedule.workload.global_batch,
        f"a batch that brings at most {MOST_ROWS} token rows to an exchange (here {rows})",
    )
