"""The npu backend: the op interface on torch_npu's fused ops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.utils.weak import WeakIdKeyDictionary
from typing_extensions import override

from runtime_npu.backends.base import PrologWeights
from runtime_npu.backends.npu_direct import NpuDirect
from runtime_npu.backends.npu_issue import Listener, Namer, not_here
from runtime_npu.backends.npu_order import Order
from runtime_npu.kv_cache import LatentCache
from runtime_npu.npu import attention_ops, matmul_ops, transfer_ops, vector_ops
from runtime_npu.npu.forms import Forms
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.parallel.link import Link
from runtime_npu.rope import Rope
from runtime_npu.sampling import Draw


class NpuBackend(NpuDirect):
    """Ops on the forms of the model's tensors (:mod:`runtime_npu.npu.forms`)."""

    def __init__(
        self,
        forms: Forms,
        order: Order,
        communicator_name: Namer,
        listener: Listener,
    ) -> None:
        super().__init__(forms, order, communicator_name, listener)
        self._heads_first: Any = WeakIdKeyDictionary()

    # ---- outside the layers, norms ----

    @override
    def embed(self, tokens: torch.Tensor, table: torch.Tensor, first: int) -> torch.Tensor:
        form = self._forms.of(table)
        rows = tokens - first
        held = (rows >= 0) & (rows < form.shape[0])
        return self._wrote(form[rows.where(held, 0)] * held[:, None])

    @override
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._wrote(vector_ops.rms_norm(x, self._forms.of(weight), eps))

    @override
    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, total = vector_ops.add_rms_norm(x, residual, self._forms.of(weight), eps)
        return self._wrote(normed), total

    @override
    def join_norms(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        x_weight: torch.Tensor,
        y_weight: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        left = vector_ops.rms_norm(x, self._forms.of(x_weight), eps)
        right = vector_ops.rms_norm(y, self._forms.of(y_weight), eps)
        return self._wrote(torch.cat((left, right), -1))

    @override
    def add(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        self._read(z)
        return self._wrote(x + y + z)

    @override
    def sample(self, logits: torch.Tensor, draw: Draw | None) -> torch.Tensor:
        if draw is not None:
            raise not_here("drawn sampling")
        return self._wrote(logits.argmax(-1))

    # ---- attention ----

    @override
    def mla_prolog(
        self,
        x: torch.Tensor,
        weights: PrologWeights,
        rope: Rope,
        cache: LatentCache,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        of = self._forms.of
        latent, rotated = attention_ops.mla_prolog(
            x,
            of(weights.q_a),
            of(weights.q_b),
            of(weights.uk),
            of(weights.kv_a),
            of(weights.q_a_norm),
            of(weights.kv_a_norm),
            of(rope.sin),
            of(rope.cos),
            self._forms.for_user(cache.latent, cache.micro_batch),
            self._forms.for_user(cache.rope, cache.micro_batch),
            of(slots),
            epsilon=weights.eps,
            q_scale=weights.q_scale,
            kv_scale=weights.kv_scale,
        )
        return self._wrote(latent), rotated

    @override
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
        return self._attend(q_latent, q_rope, cache, block_table, rows, kv_lengths, scale, False)[0]

    @override
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
        output, lse = self._attend(
            q_latent, q_rope, cache, block_table, rows, kv_lengths, scale, True
        )
        return output, lse.squeeze(-1)

    def _attend(
        self,
        q_latent: torch.Tensor,
        q_rope: torch.Tensor,
        cache: LatentCache,
        block_table: torch.Tensor,
        rows: Sequence[int],
        kv_lengths: Sequence[int],
        scale: float,
        with_lse: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        on_device = self._forms.lengths(block_table)
        last_rows, lengths = on_device or (list(accumulate(rows)), kv_lengths)
        written, lse = attention_ops.paged_attention(
            q_latent,
            q_rope,
            self._forms.for_user(cache.latent, cache.micro_batch),
            self._forms.for_user(cache.rope, cache.micro_batch),
            self._forms.of(block_table),
            last_rows,
            lengths,
            scale=scale,
            # A row that came before must not see those behind it.
            mask=self._forms.mask if max(rows) > 1 else None,
            with_lse=with_lse,
        )
        self._wrote(written)
        # The kernel writes heads first, and the next product reads them so.
        output = written.transpose(0, 1)
        self._heads_first[output] = written
        return output, lse

    @override
    def merge(self, outputs: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        parts, rows, heads, width = outputs.shape
        merged = attention_ops.attention_update(
            outputs.reshape(parts, -1, width).unbind(), lse.reshape(parts, -1).unbind()
        )
        return self._wrote(merged.view(rows, heads, width))

    @override
    def batch_matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        written = self._heads_first.get(x)
        heads_first = written is not None
        source = x if written is None else written
        product = matmul_ops.transpose_batchmatmul(
            source, self._forms.of(weight), heads_first=heads_first
        )
        return self._wrote(product)

    # ---- collectives ----

    @override
    def all_gather(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        self._read(x)
        return self._collected(collectives.all_gather_single(x, 0, group.handle))

    @override
    def reduce_scatter(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        self._read(x)
        return self._collected(collectives.reduce_scatter_single(x, "sum", 0, group.handle))

    @override
    def all_reduce(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        self._read(x)
        return self._collected(collectives.all_reduce(x, "sum", group.handle))

    @override
    def all_to_all(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        self._read(x)
        exchanged = collectives.all_to_all_single(x.contiguous(), None, None, group.handle)
        return self._collected(exchanged)

    @override
    def send(self, x: torch.Tensor, link: Link) -> None:
        self._read(x)
        transfer_ops.send(x, link, self._tag(link, sends=True))
        self._ended(x)

    @override
    def receive(self, shape: Sequence[int], dtype: torch.dtype, link: Link) -> torch.Tensor:
        tag = self._tag(link, sends=False)
        return self._wrote(transfer_ops.receive(shape, dtype, link, tag))

    def _tag(self, link: Link, *, sends: bool) -> int:
        """A number of its own for each transfer of a pass, the same at both ends.

        FFN ranks come last, so that the rank that sends up is an attention rank.
        """
        goes_up = sends == (link.peer > dist.get_rank())
        number = self._transfers.get((link.peer, sends), 0)
        self._transfers[link.peer, sends] = number + 1
        return 2 * number + (0 if goes_up else 1)
