"""The npu backend's direct transport: windows that the other role's dies write into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from runtime_npu.backends.direct import Arrived, Away, Received
from runtime_npu.backends.fillers import Candidates, Choices, choices
from runtime_npu.backends.npu_prefill import NpuPrefill
from runtime_npu.npu import direct_ops
from runtime_npu.npu.direct_ops import Batched
from runtime_npu.parallel.link import Link


@dataclass(frozen=True, slots=True)
class Found(Arrived):
    """The schedule context that has found them; ``dtype`` is that of the copies."""

    context: torch.Tensor
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class ReceivedBatch(Received):
    """Copies in the order of ``batched``."""

    batched: Batched


class NpuDirect(NpuPrefill):
    """Takes the micro-batches of a pass in turn, as the schedule contexts do.

    A context says which micro-batch is next, so that each wait takes the one before it; a
    pass starts from the context as it was made.
    """

    @override
    def fill_choices(self, ids: torch.Tensor, weights: torch.Tensor, experts: int) -> Choices:
        free, rows = self._forms.direct.candidates, len(ids)
        own = Candidates(free.ids[:rows], free.keys[:rows])
        found = choices(ids, weights, experts, own, torch.bfloat16)
        self._wrote_beside(found.weights, found.zero_weight)
        self._wrote(found.ids)
        return found

    @override
    def send_to_experts(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        experts: int,
        links: Sequence[Link],
        *,
        quantise: bool,
    ) -> Away:
        forms = self._forms.direct
        turn = self._turn % forms.windows.micro_batches
        self._turn += 1
        self._read(x, ids)
        direct_ops.attention_to_ffn(
            self._whole(x), self._whole(ids), forms, turn, quantise=quantise
        )
        self._ended(x)
        return Away()

    @override
    def wait_for_copies(
        self, experts: int, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> Arrived:
        forms = self._forms.direct
        return self._found(direct_ops.ffn_wait(self._next_context(), forms), dtype)

    @override
    def receive_copies(self, arrived: Arrived) -> Received:
        assert isinstance(arrived, Found)
        forms = self._forms.direct
        batched = direct_ops.ffn_batching(arrived.context, forms, arrived.dtype)
        # Numbers of experts may be those of all dies or the die's own: either way the die's
        # are consecutive.  Pairs without copies add nothing.
        local = forms.experts // (forms.ranks - forms.windows.attention)
        expert, copies = batched.counts.unbind(1)
        counts = torch.zeros(local, dtype=torch.int64, device=expert.device)
        counts = counts.scatter_add(0, expert % local, copies)
        self._wrote_beside(counts, batched.scales)
        self._wrote(batched.rows)
        scale = batched.scales if arrived.dtype == torch.int8 else None
        return ReceivedBatch(batched.rows, counts, scale, batched)

    @override
    def send_back(self, rows: torch.Tensor, received: Received, links: Sequence[Link]) -> None:
        assert isinstance(received, ReceivedBatch)
        # Not recorded: main comes back behind the next wait of this stream.  A captured graph
        # would keep these rows, one for each copy that could come, to its end.
        direct_ops.ffn_to_attention(rows, received.batched, self._forms.direct)
        self._ended(rows)

    @override
    def wait_for_experts(
        self, away: Away, hidden: int, dtype: torch.dtype, links: Sequence[Link]
    ) -> Arrived:
        return self._found(direct_ops.attention_wait(self._next_context()), dtype)

    @override
    def receive_from_experts(
        self, back: Arrived, away: Away, x: torch.Tensor, choices: Choices
    ) -> torch.Tensor:
        assert isinstance(back, Found)
        self._read(x, choices.weights, choices.zero_weight)
        weights = self._whole(choices.weights)
        summed = direct_ops.attention_combine(back.context, weights, self._forms.direct, back.dtype)
        return self._wrote(torch.addcmul(summed[: len(x)], x, choices.zero_weight))

    def _next_context(self) -> torch.Tensor:
        return self._forms.direct.context if self._context is None else self._context

    def _found(self, context: torch.Tensor, dtype: torch.dtype) -> Found:
        self._context = self._wrote(context)
        return Found(context, dtype)

    def _whole(self, rows: torch.Tensor) -> torch.Tensor:
        """As many rows as a micro-batch of the windows has: the last one again and again."""
        most = self._forms.direct.windows.rows
        if len(rows) == most:
            return rows
        return torch.cat((rows, rows[-1:].expand(most - len(rows), -1)))
