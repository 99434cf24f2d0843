"""A rank's view of the deployment: its place, its groups' communicators, its AFD links."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from runtime_npu.parallel.communicator import Communicator, exchanging
from runtime_npu.parallel.groups import GROUPS, GroupName, Place, members, peers, place_of
from runtime_npu.parallel.link import Link
from twin.deployment import Deployment, RoleDeployment

Groups = Mapping[GroupName, Communicator]
"""The groups that a rank is in."""


class World:
    """All ranks of ``deployment`` as seen from ``rank``; ``groups`` are the own ones by name.

    With more than one die torch.distributed must be initialised with as many ranks, and all
    ranks must construct their world at the same time.
    """

    def __init__(self, deployment: Deployment, rank: int = 0) -> None:
        self.deployment = deployment
        self.rank = rank
        self.place: Place = place_of(deployment, rank)
        handles = _handles(deployment)
        self.groups: Groups = {
            name: Communicator(own, rank, handles.get(own))
            for name in GROUPS
            for own in [members(deployment, name, rank)]
        }

    @property
    def size(self) -> int:
        """How many ranks."""
        return self.deployment.total_dies

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """AFD: the links to the other role's ranks, in rank order."""
        afd = self.deployment.afd
        depth = 1 if afd is None else afd.micro_batches
        return tuple(Link(peer, depth) for peer in peers(self.deployment, self.rank))

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """``values`` [...] of every rank: [ranks, ...].  Control traffic, no op of the model."""
        everyone = Communicator(range(self.size), self.rank)
        return everyone.all_gather(values)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            with exchanging("barrier"):
                dist.barrier()


def alone() -> World:
    """The only rank of a deployment of one die."""
    return World(
        Deployment(
            hardware="",
            quantisation="fp32",
            graph_mode="eager",
            roles={"colocated": RoleDeployment(dies=1)},
        )
    )


def _handles(deployment: Deployment) -> dict[tuple[int, ...], Any]:
    """A torch.distributed group for each set of ranks; all ranks make all, in the same order."""
    sets = {
        members(deployment, name, rank) for name in GROUPS for rank in range(deployment.total_dies)
    }
    with exchanging("making the groups"):
        return {ranks: dist.new_group(list(ranks)) for ranks in sorted(sets) if len(ranks) > 1}
