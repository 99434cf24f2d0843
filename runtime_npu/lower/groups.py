"""Groups by their ranks, however a lowered graph names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from runtime_npu.lower.lowered import peer_label, ranks_label

_NAMED = ("group_name", "group_ep", "group")
_LISTED = ("rank_list", "ranklist", "ranks")
_PEERS = ("dst", "src")
_RANKS = re.compile(r"rank_list=([\d,]+)")


def group_of_text(text: str) -> str | None:
    """The label of what a GE node says: a list of ranks, or a label already."""
    ranks = ranks_of_text(text)
    return ranks_label(ranks) if ranks else text or None


def ranks_of_text(text: str) -> list[int]:
    """The ranks that a GE node lists."""
    found = _RANKS.search(text)
    return [int(rank) for rank in found[1].split(",")] if found else []


def group_of_node(node: torch.fx.Node) -> str | None:
    """The label of the group that a call in a graph names; ``None``: none."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    return group_of_call(node.target, node.args, node.kwargs)


def group_of_call(
    call: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """The label of the group that a call names among its arguments; ``None``: none."""
    names = [argument.name for argument in call._schema.arguments]
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    for name in _PEERS:
        if isinstance(given.get(name), int) and given.get("ranks"):
            return peer_label(given[name], given["ranks"])
    for name in _LISTED:
        if given.get(name):
            return ranks_label(given[name])
    for name in _NAMED:
        if given.get(name):
            return _named(str(given[name]))
    return None


def _named(name: str) -> str:
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    try:
        group = c10d._resolve_process_group(name)
    except (LookupError, RuntimeError):
        return name  # a label already: HCCL's name of an exchange's group
    return ranks_label(c10d.get_process_group_ranks(group))
