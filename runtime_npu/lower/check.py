"""Does what was lowered say what schedule and step graph say? Line by line, groups included."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hardware_models.ops import MatMul, QuantMatMul
from runtime_npu.compare import differences
from runtime_npu.lower.lowered import WAITED_FOR, LoweredOp, peer_label, ranks_label
from runtime_npu.parallel.groups import GroupName, graph_die, members, peers, place_of
from runtime_npu.record import OpRecord
from twin.deployment import Deployment
from twin.graph.step_graph import StepGraph

MOVES = frozenset(
    (
        *("Cast", "ConcatV2", "IndexByTensor", "Pack", "SplitV", "Squeeze", "Transpose"),
        *("aten._unsafe_view", "aten.cat", "aten.clone", "aten.index"),
        *("aclnnCat", "aclnnIndex", "aclnnInplaceCopy", WAITED_FOR),
    )
)
"""What may lie between two ops: it moves rows from one to the other, and computes nothing."""


def all_differences(
    lowered: Sequence[LoweredOp],
    records: Sequence[OpRecord],
    graph: StepGraph,
    deployment: Deployment,
    rank: int,
) -> tuple[str, ...]:
    """Of the lowered ops and of the record to the step graph; wrong groups, and races."""
    die = graph_die(deployment, place_of(deployment, rank))
    issued = [op.record() for op in lowered]
    return (
        *(f"lowered: {line}" for line in differences(issued, graph, die)),
        *(f"issued: {line}" for line in differences(records, graph, die)),
        *(f"lowered: {line}" for line in _group_differences(lowered, deployment, rank)),
        *(f"lowered: {line}" for line in _size_differences(lowered, graph, die)),
        *(f"lowered: {op.name}: {race}" for op in lowered for race in op.races),
        *(
            f"lowered: {op.name}: {call} comes behind it, which no step graph has"
            for op in lowered
            for call in op.glue
            if call not in MOVES
        ),
    )


def _size_differences(lowered: Sequence[LoweredOp], graph: StepGraph, die: int) -> list[str]:
    """Products whose sizes are not those that the graph has the time of."""
    specs = {op.name: op.spec for op in graph.ops if op.die == die}
    found = []
    for op in lowered:
        spec = specs.get(op.name)
        if isinstance(spec, (MatMul, QuantMatMul)) and len(op.calls) == 1:
            expected = (spec.m, spec.n)
            if op.shape != expected:
                found.append(f"{op.name}: shape is {op.shape}, the step graph has {expected}")
    return found


def _group_differences(
    lowered: Sequence[LoweredOp], deployment: Deployment, rank: int
) -> list[str]:
    found = []
    for op in lowered:
        expected = partners(op.name, deployment, rank)
        if op.group != expected:
            found.append(f"{op.name}: group is {op.group!r}, the deployment has {expected!r}")
    return found


def partners(name: str, deployment: Deployment, rank: int) -> str | None:
    """Whom the op ``name`` talks to: ``ranks 0-7``, ``rank 64``; ``None``: nobody."""
    transfer = _TRANSFER.search(name)
    if transfer and deployment.is_direct:
        # Windows are found by what is in them: only a sender names the group.
        everyone = ranks_label(range(deployment.total_dies))
        return everyone if transfer[1] == "send" else None
    if transfer:
        return peer_label(peers(deployment, rank)[int(transfer[2] or 0)])
    group = group_of(name)
    ranks = () if group is None else members(deployment, group, rank)
    return ranks_label(ranks) if len(ranks) > 1 else None


_TRANSFER = re.compile(r"\bafd\.(send|wait|recv)(?:\.(\d+))?$")
_BY_OP: dict[str, GroupName] = {
    "all_gather": "attention_tp",
    "all_reduce": "o_proj_tp",
    "all_to_all": "o_proj_tp",
    "back_all_to_all": "ep",
    "combine": "ep",
    "count_all_to_all": "ep",
    "dispatch": "ep",
    "embed_reduce_scatter": "embed_tp",
    "lm_head_all_gather": "lm_head_tp",
    "lm_head_all_to_all": "lm_head_tp",
    "lse_all_to_all": "kvp",
    "reduce_scatter": "o_proj_tp",
    "token_all_to_all": "ep",
}


def group_of(name: str) -> GroupName | None:
    """The group in which the op ``name`` exchanges; ``None``: it does not."""
    *block, op = name.split(".")
    group = _BY_OP.get(op)
    return "dense_tp" if group is not None and "dense" in block else group
