"""Rules of a prefill step."""

from __future__ import annotations

from twin.schedule import Schedule
from twin.validate.rules import require


def check_prefill(schedule: Schedule) -> None:
    """What prefill takes: colocated dies, eager launches, whole prompts on attention groups.

    Raises:
        InputError: see :func:`twin.validate.validate_schedule`.
    """
    chunk, plan = schedule.moe.chunk_tokens, schedule.prefill
    if not schedule.workload.is_prefill:
        require(chunk is None, "moe.chunk_tokens", chunk, "null: chunks are for prefill")
        require(plan is None, "prefill", plan, "no section where workload.phase is decode")
        return
    deployment, workload = schedule.deployment, schedule.workload
    roles = sorted(deployment.roles)
    require(not deployment.is_afd, "deployment.roles", roles, "colocated alone in prefill")
    require(
        deployment.graph_mode == "eager",
        "deployment.graph_mode",
        deployment.graph_mode,
        "eager in prefill: the host reads how many rows each expert gets",
    )
    kvp = deployment.attention.kvp
    require(
        kvp == 1,
        "deployment.roles.colocated.kvp",
        kvp,
        "1 in prefill: attention_tp shares a prompt among dies",
    )
    require(
        workload.next_n == 0,
        "workload.next_n",
        workload.next_n,
        "0 in prefill (the draft layer's pass over the prompt is not simulated)",
    )
    require(
        chunk is None or chunk >= 1,
        "moe.chunk_tokens",
        chunk,
        "token rows of a die that go through the experts at once, from 1; or null for all",
    )
    names = [stage.name for stage in schedule.stages]
    require(len(names) == 1, "stages", names, "one stage in prefill")
    groups = deployment.attention.dies // deployment.attention.attention_tp
    sequences = -(-workload.global_batch // groups)
    parts = schedule.micro_batches
    require(
        1 <= parts <= sequences,
        "prefill.micro_batches",
        parts,
        f"1 to {sequences}, the sequences of an attention group",
    )
