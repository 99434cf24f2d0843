"""A rank's view of the deployment: its place, its groups' communicators, its AFD links."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

import torch
import torch.distributed as dist

from runtime_npu.parallel.communicator import Communicator, exchanging
from runtime_npu.parallel.groups import (
    GROUPS,
    GroupName,
    Place,
    link_group,
    members,
    peers,
    place_of,
)
from runtime_npu.parallel.link import Link
from twin.deployment import Deployment, RoleDeployment

Kind = Literal["ep", "group", "link"]
PLAIN_BUFFER_MB = 200
"""HCCL's default for the buffer of a communicator."""
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
        self._handles = _handles(deployment)
        self.groups: Groups = {
            name: Communicator(own, rank, self._handles.get((_kind(name), own)))
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
        if self.deployment.is_direct:
            depth *= 2  # of each micro-batch, counts and copies
        return tuple(
            Link(peer, depth, self._handles.get(("link", own)))
            for peer in peers(self.deployment, self.rank)
            for own in [link_group(self.deployment, self.rank, peer)]
        )

    @property
    def direct_group(self) -> Communicator:
        """AFD's direct transport: all ranks, in the group of its windows."""
        everyone = tuple(range(self.size))
        return Communicator(everyone, self.rank, self._handles["link", everyone])

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


def _kind(name: GroupName) -> Kind:
    return "ep" if name == "ep" else "group"


def _handles(deployment: Deployment) -> dict[tuple[Kind, tuple[int, ...]], Any]:
    """A torch.distributed group for each set of ranks; all ranks make all, in the same order.

    Experts exchange in groups of their own, also where others have the same ranks: on an NPU
    dispatch and combine write into their communicator's windows, beside the other collectives.
    So does each pair of AFD, whose transfers run beside those of other pairs; direct transfers
    go from any die to any other in one group.
    """
    ranks = range(deployment.total_dies)
    sets = {(_kind(name), members(deployment, name, rank)) for name in GROUPS for rank in ranks}
    sets |= {
        ("link", link_group(deployment, rank, peer))
        for rank in ranks
        for peer in peers(deployment, rank)
    }
    with exchanging("making the groups"):
        return {key: _group(*key) for key in sorted(sets) if len(key[1]) > 1}


def _group(kind: Kind, ranks: tuple[int, ...]) -> Any:
    options = None
    if "hccl" in dist.get_backend_config():
        # With a name of our own, what was compiled for a communicator is good for the next run.
        hccl: Any = import_module("torch_npu._C._distributed_c10d").ProcessGroupHCCL
        options = hccl.Options()
        config: dict[str, object] = {"group_name": f"{kind}_{ranks[0]}_{ranks[-1]}"}
        if kind != "ep":
            # HCCL_BUFFSIZE is what the experts' exchange needs; no other group should pay it.
            config["hccl_buffer_size"] = PLAIN_BUFFER_MB
        options.hccl_config = config
    return dist.new_group(list(ranks), pg_options=options)
