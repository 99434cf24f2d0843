"""Deployment: dies, roles, parallel sizes, quantisation and graph mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["colocated", "attention", "ffn"]
Quantisation = Literal["bf16", "w8a8", "fp32"]
GraphMode = Literal["eager", "ge_graph", "npugraph_ex"]
Transport = Literal["sdma_pairs", "camp2p", "direct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDeployment:
    """Dies of one role and the parallel sizes on them.

    ``attention_tp`` dies share the heads of the same sequences, ``kvp`` dies their KV cache;
    with both at 1 attention is data parallel over all of the role's dies.  A size that the
    role does not use stays at 1 (``ep`` on an attention role, TP on an ffn role).
    """

    dies: int
    attention_tp: int = 1
    o_proj_tp: int = 1
    dense_tp: int = 1
    ep: int = 1
    kvp: int = 1
    lm_head_tp: int = 1
    embed_tp: int = 1

    @property
    def group_dies(self) -> int:
        """Dies that hold the same sequences: an attention group (1 where both sizes are 1)."""
        return self.attention_tp * self.kvp

    @property
    def attention_groups(self) -> int:
        """Groups over which the batch is spread: each holds sequences of its own."""
        return self.dies // self.group_dies


@dataclass(frozen=True, slots=True, kw_only=True)
class Afd:
    """Attention-FFN disaggregation: how the two roles are joined."""

    transport: Transport = "sdma_pairs"
    micro_batches: int = 1

    @property
    def holds_cores(self) -> bool:
        """Whether vector cores move the data; SDMA holds none."""
        return self.transport != "sdma_pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Where and how a model runs: either one colocated role, or attention and ffn with AFD."""

    hardware: str
    quantisation: Quantisation
    graph_mode: GraphMode
    roles: Mapping[Role, RoleDeployment]
    afd: Afd | None = None

    @property
    def is_afd(self) -> bool:
        """Whether attention and FFN live on dies of their own."""
        return "ffn" in self.roles

    @property
    def attention_role(self) -> Role:
        """Name of the role that holds attention and dense FFN."""
        return "attention" if self.is_afd else "colocated"

    @property
    def moe_role(self) -> Role:
        """Name of the role that holds the experts."""
        return "ffn" if self.is_afd else "colocated"

    @property
    def attention(self) -> RoleDeployment:
        """The role that holds attention and dense FFN."""
        return self.roles[self.attention_role]

    @property
    def moe(self) -> RoleDeployment:
        """The role that holds the experts."""
        return self.roles[self.moe_role]

    @property
    def is_direct(self) -> bool:
        """Whether attention dies send each token copy straight to its expert's die."""
        return self.afd is not None and self.afd.transport == "direct"

    @property
    def router_role(self) -> Role:
        """Name of the role that chooses the experts: who sends to them must know them."""
        return self.attention_role if self.is_direct else self.moe_role

    @property
    def total_dies(self) -> int:
        """Dies of all roles together."""
        return sum(role.dies for role in self.roles.values())

    @property
    def ffn_transfers(self) -> int:
        """Receives of an FFN die, and sends, that run side by side.

        One for each attention die that it serves alone; under direct, where all dies serve all,
        one kernel is told of all attention dies.
        """
        return 1 if self.is_direct else self.attention_ratio

    @property
    def passes_ahead(self) -> int:
        """Passes that an FFN die receives before it sends back what came before them.

        Attention dies send all their micro-batches before they receive the first, and HCCL's
        Send holds its stream until the other end receives: in another order both would hang.
        Direct transfers wait for no receiver.
        """
        return 0 if self.afd is None or self.is_direct else self.afd.micro_batches - 1

    @property
    def attention_ratio(self) -> int:
        """Attention dies simulated beside one FFN die: r of A = r F (1 when colocated).

        Any A:F is possible where all dies serve all: then the whole part of A / F, at least 1.
        """
        if not self.is_afd:
            return 1
        return max(1, self.roles["attention"].dies // self.roles["ffn"].dies)
