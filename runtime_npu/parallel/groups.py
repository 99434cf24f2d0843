"""Ranks of a deployment: roles, and the groups of consecutive dies that exchange with each other.

A rank is one die.  With AFD the attention dies come first, then the FFN dies; FFN die j
serves the attention dies j r .. j r + r - 1 of A = r F, or under direct all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from twin.deployment import Deployment, Role

GroupName = Literal["attention_tp", "o_proj_tp", "dense_tp", "kvp", "lm_head_tp", "embed_tp", "ep"]
GROUPS: tuple[GroupName, ...] = get_args(GroupName)
"""Groups by the field of ``RoleDeployment`` that says how many dies are in one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's role, and its number among the dies of that role."""

    role: Role
    number: int


def place_of(deployment: Deployment, rank: int) -> Place:
    """Role and number of ``rank`` (0 .. total dies - 1)."""
    held = deployment.attention.dies
    if rank < held:
        return Place(deployment.attention_role, rank)
    return Place("ffn", rank - held)


def rank_of(deployment: Deployment, place: Place) -> int:
    """The rank at ``place``: the inverse of :func:`place_of`."""
    before = deployment.attention.dies if place.role == "ffn" else 0
    return before + place.number


def graph_die(deployment: Deployment, place: Place) -> int:
    """The die of the step graph that stands for the rank at ``place``: see ``build_step_graph``."""
    if not deployment.is_afd:
        return 0
    ratio = deployment.attention_ratio
    return ratio if place.role == "ffn" else place.number % ratio


def members(deployment: Deployment, name: GroupName, rank: int) -> tuple[int, ...]:
    """The ranks of the group that ``rank`` is in, itself included, in rank order."""
    place = place_of(deployment, rank)
    size = getattr(deployment.roles[place.role], name)
    first = rank_of(deployment, Place(place.role, place.number // size * size))
    return tuple(range(first, first + size))


def peers(deployment: Deployment, rank: int) -> tuple[int, ...]:
    """AFD: the ranks that ``rank`` sends to and receives from; none where roles are colocated."""
    if not deployment.is_afd:
        return ()
    ratio, place = deployment.attention_ratio, place_of(deployment, rank)
    if deployment.is_direct:
        attention, ranks = deployment.attention.dies, range(deployment.total_dies)
        return tuple(ranks[attention:] if place.role == "attention" else ranks[:attention])
    if place.role == "attention":
        return (rank_of(deployment, Place("ffn", place.number // ratio)),)
    first = place.number * ratio
    return tuple(range(first, first + ratio))


def link_group(deployment: Deployment, rank: int, peer: int) -> tuple[int, ...]:
    """The group in which ``rank`` and ``peer`` send and receive: the two, or under direct all."""
    if deployment.is_direct:
        return tuple(range(deployment.total_dies))
    return min(rank, peer), max(rank, peer)
