"""The op interface: all that the model asks of a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from runtime_npu.backends.direct import DirectOps
from runtime_npu.backends.prefill import PrefillOps
from runtime_npu.kv_cache import LatentCache
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.parallel.link import Link
from runtime_npu.quantise import Quantised
from runtime_npu.record import Event, Recorder
from runtime_npu.rope import Rope
from runtime_npu.sampling import Draw


@dataclass(frozen=True, slots=True)
class PrologWeights:
    """What turns an attention's input into queries and its latent KV.

    ``q_a`` [q rank, hidden], ``q_b`` [heads x (nope + rope), q rank], ``kv_a`` [kv rank +
    rope, hidden], ``uk`` [heads, nope, kv rank]; norm weights [q rank] and [kv rank].
    ``q_scale`` multiplies the queries, ``kv_scale`` the normed latent.
    """

    q_a: torch.Tensor
    q_a_norm: torch.Tensor
    q_b: torch.Tensor
    kv_a: torch.Tensor
    kv_a_norm: torch.Tensor
    uk: torch.Tensor
    q_scale: float
    kv_scale: float
    eps: float


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Rows that came to this rank's experts, and how they go back.

    ``rows`` [N, hidden] are sorted by local expert, ``counts`` [local experts] says how many
    each got.  ``source`` [M] are the indices, in the own flattened (token, choice) pairs, of
    the M rows sent away, by expert: ``sent`` of them to each rank of ``group``, and
    ``received`` rows from each, which ``order`` [N] sorted by expert.
    """

    rows: torch.Tensor
    counts: torch.Tensor
    source: torch.Tensor
    order: torch.Tensor
    sent: tuple[int, ...]
    received: tuple[int, ...]
    group: Communicator


class Backend(PrefillOps, DirectOps, ABC):
    """Ops on tensors, and where they are issued: stream, core limit, SuperKernel scope.

    T counts token rows.  Ops do not change their arguments, except that what makes a
    row's KV writes the cache.  The base class records the streams, limits, scopes and waits; a
    backend whose device knows them extends these methods.
    """

    def __init__(self) -> None:
        self.recorder = Recorder()

    def stream(self, name: str) -> AbstractContextManager[None]:
        """Issue the ops inside on stream ``name``."""
        return self.recorder.stream(name)

    def core_limit(self, aic: int | None, aiv: int | None) -> AbstractContextManager[None]:
        """Let the ops inside use at most these cube and vector cores (``None``: all)."""
        return self.recorder.core_limit(aic, aiv)

    def super_kernel(self, scope: str | None) -> AbstractContextManager[None]:
        """Put the ops inside into SuperKernel ``scope`` (``None``: into none)."""
        return self.recorder.super_kernel(scope)

    def launch(self, name: str, kind: str) -> Event:
        """Note that op ``name`` is issued now; the event behind it."""
        return self.recorder.launch(name, kind)

    def signal(self) -> Event:
        """The event behind what the current stream was given so far."""
        return self.recorder.signal()

    def wait(self, event: Event) -> None:
        """Hold the current stream until ``event``."""
        self.recorder.wait(event)

    @abstractmethod
    def prefetch(self, name: str, weight: torch.Tensor, after: Event, max_bytes: int) -> None:
        """Start bringing ``max_bytes`` of ``weight`` (at most all of it) near the cores."""

    def join_rows(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """``parts`` [.., hidden] one behind the other, no op of the schedule's; one is itself."""
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))

    @abstractmethod
    def embed(self, tokens: torch.Tensor, table: torch.Tensor, first: int) -> torch.Tensor:
        """Rows [T, hidden] of ``tokens`` [T]; ``table`` holds those of ids from ``first`` on.

        A token whose row is not in the table gives zeros.
        """

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``x`` [T, width] over its root mean square, times ``weight`` [width]."""

    @abstractmethod
    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of residual + x, residual + x)."""

    @abstractmethod
    def join_norms(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        x_weight: torch.Tensor,
        y_weight: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """The norms of ``x`` and of ``y`` [T, width], side by side: [T, 2 width]."""

    @abstractmethod
    def mla_prolog(
        self,
        x: torch.Tensor,
        weights: PrologWeights,
        rope: Rope,
        cache: LatentCache,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Absorbed queries (latent [T, heads, kv rank], rope [T, heads, rope]).

        ``x`` is [T, hidden]; the rows' latent KV goes to ``cache`` at ``slots`` [T].
        """

    @abstractmethod
    def mla_attention(
        self,
        q_latent: torch.Tensor,
        q_rope: torch.Tensor,
        cache: LatentCache,
        block_table: torch.Tensor,
        rows: Sequence[int],
        kv_lengths: Sequence[int],
        *,
        scale: float,
    ) -> torch.Tensor:
        """Absorbed attention over the cache: [T, heads, kv rank].

        Each sequence's ``rows`` are its newest: the last one sees all ``kv_lengths`` tokens,
        each row before it one less.
        """

    @abstractmethod
    def mla_attention_part(
        self,
        q_latent: torch.Tensor,
        q_rope: torch.Tensor,
        cache: LatentCache,
        block_table: torch.Tensor,
        rows: Sequence[int],
        kv_lengths: Sequence[int],
        *,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`mla_attention`, with the log-sum-exp of the scores [T, heads] in fp32.

        Where ``kv_lengths`` says 0 the output is 0 and the log-sum-exp -inf.
        """

    @abstractmethod
    def merge(self, outputs: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        """Attention over all tokens [T, heads, v] from that over parts of them.

        ``outputs`` are [parts, T, heads, v], their ``lse`` [parts, T, heads].
        """

    @abstractmethod
    def batch_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Per head: ``x`` [T, heads, k] by ``weight`` [heads, k, n] gives [T, heads, n]."""

    @abstractmethod
    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``x`` [T, k] by ``weight`` [n, k] gives [T, n]."""

    @abstractmethod
    def swiglu(self, x: torch.Tensor) -> torch.Tensor:
        """silu(gate) x up, for ``x`` [T, 2 n] that holds gate, then up: [T, n]."""

    @abstractmethod
    def dynamic_quant(self, x: torch.Tensor) -> Quantised:
        """``x`` [T, n] as int8, with a scale per row."""

    @abstractmethod
    def int_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """int8 ``x`` [T, k] by int8 ``weight`` [n, k] gives int32 [T, n]."""

    @abstractmethod
    def dequant_swiglu_quant(
        self,
        x: torch.Tensor,
        row_scale: torch.Tensor,
        weight_scale: torch.Tensor,
        counts: torch.Tensor,
    ) -> Quantised:
        """:meth:`swiglu` of an int32 product, again as int8: [N, n].

        ``x`` [N, 2 n] has a ``row_scale`` [N]; the first ``counts[0]`` rows come from the
        weight with the scales ``weight_scale[0]`` [2 n], and so on.
        """

    @abstractmethod
    def quant_matmul(
        self,
        x: Quantised,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """``x`` [T, k] by int8 ``weight`` [n, k] with scales [n], in ``dtype``: [T, n]."""

    @abstractmethod
    def cast(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` in fp32, for the router."""

    @abstractmethod
    def router_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Router logits [T, experts] in fp32."""

    @abstractmethod
    def topk_gating(
        self, logits: torch.Tensor, correction_bias: torch.Tensor, topk: int, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(weights, expert ids), each [T, topk].

        Scores are the softmax of ``logits``.  ``correction_bias`` [experts] counts in the
        choice only: weights are the plain scores times ``scale``, not renormalised.
        """

    @abstractmethod
    def dispatch(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, group: Communicator
    ) -> Dispatched:
        """Send the rows of ``x`` to every chosen expert: id below ``experts``.

        Each rank of ``group`` holds equally many consecutive experts.
        """

    @abstractmethod
    def dispatch_quantised(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, group: Communicator
    ) -> tuple[Dispatched, torch.Tensor]:
        """:meth:`dispatch` of the rows as int8; the scale of each row that came [N] beside it."""

    @abstractmethod
    def grouped_int_matmul(
        self, x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """:meth:`grouped_matmul` of int8 by int8: int32 [N, n]."""

    @abstractmethod
    def grouped_quant_matmul(
        self,
        x: Quantised,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        counts: torch.Tensor,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """:meth:`grouped_matmul` of int8, whose weights have scales [experts, n], in ``dtype``."""

    @abstractmethod
    def grouped_matmul(
        self, x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """Each expert's rows of ``x`` [N, k] by its ``weight`` [experts, n, k]: [N, n]."""

    @abstractmethod
    def combine(
        self,
        expert_rows: torch.Tensor,
        dispatched: Dispatched,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        *,
        experts: int,
    ) -> torch.Tensor:
        """Send rows back; per token, the weighted sum of what its experts gave: [T, hidden].

        Ids from ``experts`` on are zero experts: they give their input row of ``x`` back.
        """

    @abstractmethod
    def add(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """``x`` + ``y`` + ``z``."""

    @abstractmethod
    def sample(self, logits: torch.Tensor, draw: Draw | None) -> torch.Tensor:
        """Tokens [B] of ``logits`` [B, vocabulary]: drawn, or greedy, the lowest id of a tie."""

    @abstractmethod
    def all_gather(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        """Rows ``x`` [T, n] of all ranks, in rank order: [ranks x T, n]."""

    @abstractmethod
    def reduce_scatter(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        """The own rows [T, n] of the sum of every rank's ``x`` [ranks x T, n]."""

    @abstractmethod
    def all_reduce(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        """The sum of every rank's ``x``: the same bits on all."""

    @abstractmethod
    def all_to_all(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        """Part i of ``x`` [ranks, ...] goes to rank i; the parts that came: [ranks, ...]."""

    @abstractmethod
    def send(self, x: torch.Tensor, link: Link) -> None:
        """Start sending ``x`` over ``link``."""

    @abstractmethod
    def receive(self, shape: Sequence[int], dtype: torch.dtype, link: Link) -> torch.Tensor:
        """The next tensor that comes over ``link``."""
