"""A step of one rank, its tensors without data: model, batch, cache and their forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module

import torch
import torch.distributed as dist

from hardware_models.hardware import Hardware
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_issue import Listener
from runtime_npu.backends.npu_order import CapturedOrder, EagerOrder, GeOrder, Order
from runtime_npu.batch import Batch, Packer, Step
from runtime_npu.generate import rank_blocks
from runtime_npu.kv_cache import KvCache
from runtime_npu.lower.balanced import BalancedBackend
from runtime_npu.lower.lowered import ranks_label
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.npu.attention_ops import MASK
from runtime_npu.npu.forms import Forms, bind_cache, bind_weights
from runtime_npu.parallel.layout import Layout, last_rows
from runtime_npu.parallel.world import World
from runtime_npu.plan import layer_plan, prefill_order
from runtime_npu.rope import rope_table
from twin.deployment import GraphMode
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

DTYPE = torch.bfloat16
"""Of all that is not quantised."""


def pretend_world(ranks: int, rank: int) -> None:
    """Initialise torch.distributed as ``rank`` of ``ranks`` that nobody else runs."""
    if dist.is_initialized():
        dist.destroy_process_group()
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    dist.init_process_group("fake", store=store, rank=rank, world_size=ranks)


ORDERS: dict[GraphMode, Callable[[Hardware], Order]] = {
    "eager": EagerOrder,
    "ge_graph": GeOrder,
    "npugraph_ex": CapturedOrder,
}
Place = Callable[[torch.Tensor], torch.Tensor]
Pass = Callable[[], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class RankStep:
    """A rank's step, ready to be traced, or run in eager.

    ``passes`` are the main one and those that draft, each a graph of its own; they reach
    ``forms.inputs`` by themselves and give what a graph must compute.
    """

    backend: NpuBackend
    forms: Forms
    order: Order
    passes: tuple[Pass, ...]


def rank_step(
    schedule: Schedule,
    spec: ModelSpec,
    hardware: Hardware,
    rank: int,
    mode: AbstractContextManager[object],
    listener: Listener,
) -> RankStep:
    """Build the step of ``rank``; the world must be pretended by now.

    Tensors are made under ``mode``.  In decode every sequence has the workload's KV length, and
    runs its last token and its drafts; in prefill that many tokens.
    """
    deployment = schedule.deployment
    world = World(deployment, rank)
    order, forms = ORDERS[deployment.graph_mode](hardware), Forms()
    backend = BalancedBackend(
        spec, forms, order, lambda group: ranks_label(group.members), listener
    )

    def place(host: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty(host.shape, dtype=host.dtype, device="npu")

    with mode:  # so that the model may take views of its weights while it is traced
        plan, drafts = layer_plan(schedule, world.place.role), schedule.workload.next_n
        model: FfnDie | LongcatFlash
        if world.place.role == "ffn":
            model = FfnDie(spec, backend, plan, world, dtype=DTYPE, next_n=drafts)
        else:
            prompts = prefill_order(schedule)
            model = LongcatFlash(
                spec, backend, plan, world, dtype=DTYPE, prefill=prompts, next_n=drafts
            )
        bind_weights(forms, model, place)
    batch = _Batch(schedule, spec, world)
    if isinstance(model, FfnDie):
        return RankStep(backend, forms, order, (batch.serve(model),))
    if schedule.workload.is_prefill:
        forms.bind_mask(place(torch.empty(MASK, dtype=torch.bool, device="meta")))
    return RankStep(backend, forms, order, batch.attend(model, forms, place))


class _Batch:
    """The workload's sequences, as a rank's passes see them."""

    def __init__(self, schedule: Schedule, spec: ModelSpec, world: World) -> None:
        workload = schedule.workload
        self._schedule, self._spec, self._world = schedule, spec, world
        self._rows = [[0] * workload.rows_per_sequence] * workload.global_batch
        counts = [len(own) for own in self._rows]
        order = prefill_order(schedule)
        self._layout = Layout(schedule.deployment, workload.global_batch, order)
        self._parts = self._layout.parts(workload.phase, counts)
        wanted = 1 if workload.is_prefill else counts[0]
        self._last = last_rows(self._layout, self._parts, counts, wanted)

    def serve(self, model: FfnDie) -> Pass:
        """The pass of an FFN die, whose results leave by its links."""
        heights = [part.height for part in self._parts]

        def run() -> Sequence[torch.Tensor]:
            model("decode", heights)
            return ()

        return run

    def attend(self, model: LongcatFlash, forms: Forms, place: Place) -> tuple[Pass, ...]:
        """The main pass of an attention die and its drafts; their tensors are bound."""
        workload, spec, die = self._schedule.workload, self._spec, self._world.place.number
        cached = 0 if workload.is_prefill else workload.kv_tokens
        longest = cached + len(self._rows[0]) + workload.next_n
        cache = self._cache([longest] * len(self._rows))
        afd, mode = self._schedule.deployment.afd, self._schedule.deployment.graph_mode
        aliased = afd.micro_batches if afd is not None and mode == "npugraph_ex" else 1
        bind_cache(forms, cache, place, place, aliased)
        table = rope_table(spec, longest, DTYPE)
        packer = Packer(self._layout, die, cache, table, sampling=None, vocab_size=spec.vocab_size)
        main = packer.pack(
            workload.phase, self._rows, [cached] * len(self._rows), self._parts, self._last
        )
        drafts = [packer.follow(main, self._rows, self._parts) for _ in range(workload.next_n)]
        is_ge = self._schedule.deployment.graph_mode == "ge_graph"
        for batch in {id(b): b for step in (main, *drafts) for b in step.batches}.values():
            _bind_batch(forms, batch, place, lengths_on_device=is_ge)

        def on_device(step: Step) -> Step:
            tokens, wanted = place(step.tokens), place(step.last_rows)
            forms.inputs.extend((tokens, wanted))
            return replace(step, tokens=tokens, last_rows=wanted)

        shape = (sum(main.heights), spec.hidden_size)
        hidden = place(torch.empty(shape, dtype=DTYPE, device="meta"))
        forms.inputs.append(hidden)
        first = on_device(main)

        def run_main() -> Sequence[torch.Tensor]:
            output = model(first, cache)
            return output.tokens, output.hidden

        def draft(number: int, step: Step) -> Pass:
            def run() -> Sequence[torch.Tensor]:
                output = model.draft(number, step, hidden, cache)
                return output.tokens, output.hidden

            return run

        return run_main, *(draft(n, on_device(step)) for n, step in enumerate(drafts))

    def _cache(self, lengths: Sequence[int]) -> KvCache:
        world = self._world
        held = self._layout.held(self._layout.group_of(world.place.number))
        with torch.device("meta"):
            return KvCache(
                self._spec,
                sequences=len(held),
                blocks=rank_blocks(world.deployment, world.rank, lengths, None),
                dtype=DTYPE,
                mtp_passes=self._schedule.workload.next_n,
            )


def _bind_batch(forms: Forms, batch: Batch, place: Place, *, lengths_on_device: bool) -> None:
    forms.bind(batch.slots, place(batch.slots))
    forms.bind(batch.block_table, place(batch.block_table.to(torch.int32)))
    for table in (batch.rope.cos, batch.rope.sin):
        # Kernels turn halves of a head, so every angle is there twice.
        forms.bind(table, place(table.repeat(1, 2)))
    if lengths_on_device:
        # One graph for all steps: only what is captured anew may know the lengths.
        numbers = torch.tensor(batch.kv_lengths)
        forms.bind_lengths(batch.block_table, place(numbers), place(numbers))
