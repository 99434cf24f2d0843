"""The op interface's part for prefill: un-absorbed attention, and routing twice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime_npu.kv_cache import LatentCache
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.rope import Rope


@dataclass(frozen=True, slots=True)
class Routed:
    """The copies of rows that go to real experts, sorted by expert.

    ``rows`` are [M, hidden]; ``source`` [M] are their indices in the flattened (row, choice)
    pairs, ``counts`` [experts] says how many each expert gets.
    """

    rows: torch.Tensor
    source: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Rows that came from the ranks, sorted by local expert.

    ``rows`` are [N, hidden], ``counts`` [local experts]; ``order`` [N] says which of those that
    came each row is.
    """

    rows: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor


class PrefillOps(ABC):
    """Ops of prefill.  T counts token rows."""

    @abstractmethod
    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The rows of ``x`` [T, n] with the indices ``rows`` [B]: [B, n]."""

    @abstractmethod
    def rotate_queries(self, queries: torch.Tensor, rope: Rope, heads: int) -> torch.Tensor:
        """``queries`` [T, heads x (nope + rope)] as heads, their last parts turned by ``rope``."""

    @abstractmethod
    def kv_norm_rope_cache(
        self,
        kv: torch.Tensor,
        weight: torch.Tensor,
        rope: Rope,
        cache: LatentCache,
        slots: torch.Tensor,
        *,
        scale: float,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The latent [T, kv rank] and the rotated key part [T, rope], also put in ``cache``.

        ``kv`` is [T, kv rank + rope].  The latent is normed by ``weight`` [kv rank] and
        multiplied by ``scale``; ``slots`` [T] are where the rows go.
        """

    @abstractmethod
    def keys_and_values(
        self, latent: torch.Tensor, uk: torch.Tensor, uv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each head's key (nope part) [T, heads, nope] and value [T, heads, v].

        ``latent`` is [T, kv rank], ``uk`` [heads, nope, kv rank], ``uv`` [heads, kv rank, v].
        """

    @abstractmethod
    def causal_attention(
        self,
        queries: torch.Tensor,
        k_nope: torch.Tensor,
        k_rope: torch.Tensor,
        values: torch.Tensor,
        rows: Sequence[int],
        *,
        scale: float,
    ) -> torch.Tensor:
        """Causal attention within each sequence's ``rows``: [T, heads, v].

        ``queries`` [T, heads, nope + rope]; a key is a head's ``k_nope`` [T, heads, nope] and
        the ``k_rope`` [T, rope] that all heads share; ``values`` [T, heads, v].
        """

    @abstractmethod
    def init_routing(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
        """Copy each row of ``x`` [T, hidden] for every chosen expert with an id below ``experts``.

        ``ids`` are [T, topk]; those from ``experts`` on are zero experts, which need no copy.
        """

    @abstractmethod
    def init_routing_quantised(self, x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
        """:meth:`init_routing` of the rows as int8; a row's fp32 scale is its last bytes."""

    @abstractmethod
    def read_counts(
        self, counts: torch.Tensor, arriving: torch.Tensor
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """On the host: rows sent to and received from each rank.

        ``counts`` and ``arriving`` are [ranks, local experts].
        """

    @abstractmethod
    def exchange_rows(
        self,
        rows: torch.Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        group: Communicator,
    ) -> torch.Tensor:
        """Send ``sent[i]`` of ``rows`` to rank i; the ``received[i]`` rows from each, in order."""

    @abstractmethod
    def re_routing(self, rows: torch.Tensor, arriving: torch.Tensor) -> Rerouted:
        """Sort ``rows`` [N, hidden], which lie by rank and expert, by expert.

        ``arriving`` [ranks, local experts] counts them.
        """

    @abstractmethod
    def re_routing_quantised(
        self, rows: torch.Tensor, arriving: torch.Tensor
    ) -> tuple[Rerouted, torch.Tensor]:
        """:meth:`re_routing` of rows that end in their scales; the scales [N] apart."""

    @abstractmethod
    def restore_order(self, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """``rows`` [N, hidden] as they came: the inverse of :meth:`re_routing`."""

    @abstractmethod
    def finalize_routing(
        self,
        rows: torch.Tensor,
        source: torch.Tensor,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        *,
        experts: int,
    ) -> torch.Tensor:
        """Per token, the weighted sum of what its experts gave: [T, hidden].

        ``rows`` [M, hidden] are those of the (token, choice) pairs ``source`` [M].  Ids from
        ``experts`` on are zero experts: they give their input row of ``x`` [T, hidden] back.
        """
