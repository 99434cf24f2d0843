"""A step of one rank, its tensors without data: model, batch, cache and their forms."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.distributed as dist

from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_issue import Listener
from runtime_npu.backends.npu_order import Order
from runtime_npu.batch import Packer, Step
from runtime_npu.generate import rank_blocks
from runtime_npu.kv_cache import KvCache
from runtime_npu.lower.balanced import BalancedBackend
from runtime_npu.lower.lowered import ranks_label
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.npu.attention_ops import MASK
from runtime_npu.npu.direct_ops import CONTEXT_BYTES
from runtime_npu.npu.forms import Forms, bind_cache, bind_weights
from runtime_npu.npu.pass_trace import PassInputs, Run, draft_run, ffn_run, main_run
from runtime_npu.npu.step_inputs import step_inputs
from runtime_npu.npu.window_forms import window_forms
from runtime_npu.parallel.layout import Layout, last_rows
from runtime_npu.parallel.world import World
from runtime_npu.plan import layer_plan, prefill_order
from runtime_npu.rope import rope_table
from twin.graph.shapes import step_shapes
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.windows import step_windows

DTYPE = torch.bfloat16
"""Of all that is not quantised."""


def pretend_world(ranks: int, rank: int) -> None:
    """Initialise torch.distributed as ``rank`` of ``ranks`` that nobody else runs."""
    if dist.is_initialized():
        dist.destroy_process_group()
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    dist.init_process_group("fake", store=store, rank=rank, world_size=ranks)


@dataclass(frozen=True, slots=True)
class RankPass:
    """The main pass of a rank or one that drafts, each a graph of its own."""

    name: str
    run: Run
    given: PassInputs


@dataclass(frozen=True, slots=True)
class RankStep:
    """A rank's step, as the run on its NPU has it: ready to be traced, or issued in eager."""

    backend: NpuBackend
    passes: tuple[RankPass, ...]


def rank_step(
    schedule: Schedule,
    spec: ModelSpec,
    order: Order,
    rank: int,
    mode: AbstractContextManager[object],
    listener: Listener,
) -> RankStep:
    """Build the step of ``rank``, told of its streams by ``order``; the world must be pretended.

    The model's own weights are made under ``mode``.  In decode every sequence has the workload's
    KV length, and runs its last token and its drafts; in prefill that many tokens.
    """
    deployment = schedule.deployment
    world, forms = World(deployment, rank), Forms()
    backend = BalancedBackend(
        spec, forms, order, lambda group: ranks_label(group.members), listener
    )
    batch = _Batch(schedule, spec, world)
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
    bind_weights(forms, model, batch.place_weight)
    if deployment.is_direct:
        context = batch.place(torch.empty(CONTEXT_BYTES, dtype=torch.int8, device="meta"))
        windows = step_windows(step_shapes(schedule, spec))
        everyone = ranks_label(range(world.size))
        tables = window_forms(windows, spec, world, everyone, context, batch.place)
        forms.bind_direct(tables)
    passes = batch.serve(model, forms) if isinstance(model, FfnDie) else batch.attend(model, forms)
    return RankStep(backend, passes)


class _Batch:
    """The workload's sequences, as a rank's passes see them.

    A graph is traced on stand-ins, so that only eager passes have tensors on the device.
    """

    def __init__(self, schedule: Schedule, spec: ModelSpec, world: World) -> None:
        workload, self._mode = schedule.workload, schedule.deployment.graph_mode
        self._schedule, self._spec, self._world = schedule, spec, world
        self._device = "npu" if self._mode == "eager" else "meta"
        self._rows = [[0] * workload.rows_per_sequence] * workload.global_batch
        counts = [len(own) for own in self._rows]
        order = prefill_order(schedule)
        self._layout = Layout(schedule.deployment, workload.global_batch, order)
        self._parts = self._layout.parts(workload.phase, counts)
        wanted = 1 if workload.is_prefill else counts[0]
        self._last = last_rows(self._layout, self._parts, counts, wanted)

    def place(self, host: torch.Tensor) -> torch.Tensor:
        """A tensor without data for ``host``."""
        return torch.empty(host.shape, dtype=host.dtype, device=self._device)

    def place_weight(self, host: torch.Tensor) -> torch.Tensor:
        """The same for a weight."""
        return torch.nn.Parameter(self.place(host), requires_grad=False)

    def serve(self, model: FfnDie, forms: Forms) -> tuple[RankPass, ...]:
        """The pass of an FFN die."""
        heights = [part.height for part in self._parts]
        return (RankPass("ffn", ffn_run(model, "decode", heights), PassInputs(forms)),)

    def attend(self, model: LongcatFlash, forms: Forms) -> tuple[RankPass, ...]:
        """The main pass of an attention die and its drafts; the cache is bound."""
        workload, spec, die = self._schedule.workload, self._spec, self._world.place.number
        cached = 0 if workload.is_prefill else workload.kv_tokens
        longest = cached + len(self._rows[0]) + workload.next_n
        cache = self._cache([longest] * len(self._rows))
        bind_cache(forms, cache, self.place, self.place, self._schedule.deployment)
        forms.bind_mask(self.place_weight(torch.empty(MASK, dtype=torch.bool, device="meta")))
        table = rope_table(spec, longest, DTYPE)
        packer = Packer(self._layout, die, cache, table, sampling=None, vocab_size=spec.vocab_size)
        main = packer.pack(
            workload.phase, self._rows, [cached] * len(self._rows), self._parts, self._last
        )
        shape = (sum(main.heights), spec.hidden_size)
        hidden = self.place(torch.empty(shape, dtype=DTYPE, device="meta"))
        following = packer.follow(main, self._rows, self._parts)
        return (
            RankPass("main", main_run(model, cache), self._inputs(forms, main, None)),
            *(
                RankPass(
                    f"pass-{number}",
                    draft_run(model, cache, number),
                    self._inputs(forms, following, hidden),
                )
                for number in range(workload.next_n)
            ),
        )

    def _inputs(self, forms: Forms, step: Step, hidden: torch.Tensor | None) -> PassInputs:
        width = max(batch.block_table.shape[1] for batch in step.batches)
        inputs = step_inputs(step, width, lengths_on_device=self._mode == "ge_graph")
        return PassInputs(forms, step, inputs, hidden)

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
