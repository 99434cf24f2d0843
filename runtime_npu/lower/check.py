"""Does what was lowered say what schedule and step graph say? Line by line, groups included."""

from __future__ import annotations

from collections.abc import Sequence

from runtime_npu.compare import differences
from runtime_npu.lower.lowered import LoweredOp
from runtime_npu.parallel.groups import GroupName, members
from runtime_npu.record import OpRecord
from twin.deployment import Deployment
from twin.graph.step_graph import StepGraph


def all_differences(
    lowered: Sequence[LoweredOp],
    records: Sequence[OpRecord],
    graph: StepGraph,
    deployment: Deployment,
    rank: int,
) -> tuple[str, ...]:
    """Of the lowered ops and of the record to the step graph; and wrong groups."""
    return (
        *(f"lowered: {line}" for line in differences([op.record() for op in lowered], graph)),
        *(f"issued: {line}" for line in differences(records, graph)),
        *(f"lowered: {line}" for line in _group_differences(lowered, deployment, rank)),
    )


def _group_differences(
    lowered: Sequence[LoweredOp], deployment: Deployment, rank: int
) -> list[str]:
    found = []
    for op in lowered:
        group = group_of(op.name)
        ranks = () if group is None else members(deployment, group, rank)
        expected = f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else None
        if op.group != expected:
            found.append(f"{op.name}: group is {op.group!r}, the deployment has {expected!r}")
    return found


_BY_OP: dict[str, GroupName] = {
    "all_gather": "attention_tp",
    "all_reduce": "o_proj_tp",
    "all_to_all": "o_proj_tp",
    "combine": "ep",
    "dispatch": "ep",
    "embed_reduce_scatter": "embed_tp",
    "lm_head_all_gather": "lm_head_tp",
    "lm_head_all_to_all": "lm_head_tp",
    "lse_all_to_all": "kvp",
    "reduce_scatter": "o_proj_tp",
}


def group_of(name: str) -> GroupName | None:
    """The group in which the op ``name`` exchanges; ``None``: it does not."""
    *block, op = name.split(".")
    group = _BY_OP.get(op)
    return "dense_tp" if group is not None and "dense" in block else group
