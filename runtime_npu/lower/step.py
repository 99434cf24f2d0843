"""A decode step of one rank, its tensors without data: model, batch, cache and their forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from hardware_models.hardware import Hardware
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_order import CapturedOrder, GeOrder
from runtime_npu.batch import Batch, Packer, Step
from runtime_npu.generate import rank_blocks
from runtime_npu.kv_cache import KvCache
from runtime_npu.lower.groups import ranks_label
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.npu.forms import Forms, bind_weights
from runtime_npu.parallel.layout import Layout, last_rows
from runtime_npu.parallel.world import World
from runtime_npu.plan import layer_plan
from runtime_npu.rope import rope_table
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


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A rank's step, ready to be traced; ``forms.inputs`` are the graph's inputs."""

    model: LongcatFlash
    backend: NpuBackend
    cache: KvCache
    main: Step
    drafts: tuple[Step, ...]
    hidden: torch.Tensor
    forms: Forms


def decode_step(
    schedule: Schedule,
    spec: ModelSpec,
    hardware: Hardware,
    rank: int,
    mode: FakeTensorMode,
    on_launch: Callable[[str], None],
) -> DecodeStep:
    """Build the step of ``rank``; the world must be pretended by now.

    Every sequence has the workload's KV length, and runs its last token and its drafts.
    """
    deployment, workload = schedule.deployment, schedule.workload
    world = World(deployment, rank)
    order = (GeOrder if deployment.graph_mode == "ge_graph" else CapturedOrder)(hardware)
    forms = Forms()
    backend = NpuBackend(forms, order, lambda group: ranks_label(group.members), on_launch)
    with mode:  # so that the model may take views of its weights while it is traced
        model = LongcatFlash(
            spec,
            backend,
            layer_plan(schedule, world.place.role),
            world,
            dtype=DTYPE,
            next_n=workload.next_n,
        )

    def place(host: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty(host.shape, dtype=host.dtype, device="npu")

    with mode:
        bind_weights(forms, model, place)
    sequences = workload.global_batch
    rows = [[0] * workload.rows_per_sequence] * sequences
    lengths = [workload.kv_tokens + len(rows[0]) + workload.next_n] * sequences
    layout = Layout(deployment, sequences)
    held = layout.held(layout.group_of(rank))
    with torch.device("meta"):
        cache = KvCache(
            spec,
            sequences=len(held),
            blocks=rank_blocks(deployment, rank, lengths, None),
            dtype=DTYPE,
            mtp_passes=workload.next_n,
        )
    for attention in cache.attentions:
        for half in (attention.latent, attention.rope):
            forms.bind(half, place(half.unsqueeze(2)))

    table = rope_table(spec, max(lengths), DTYPE)
    packer = Packer(layout, rank, cache, table, sampling=None, vocab_size=spec.vocab_size)
    parts = layout.parts("decode", [len(own) for own in rows])
    last = last_rows(layout, parts, [len(own) for own in rows], len(rows[0]))
    main = packer.pack("decode", rows, [workload.kv_tokens] * sequences, parts, last)
    drafts = [packer.follow(main, rows, parts) for _ in range(workload.next_n)]
    for batch in {id(b): b for step in (main, *drafts) for b in step.batches}.values():
        _bind_batch(forms, batch, place)
        if deployment.graph_mode == "ge_graph":
            # One graph for all steps: only what is captured anew may know the lengths.
            numbers = torch.tensor(batch.kv_lengths)
            forms.bind_lengths(batch.block_table, place(numbers), place(numbers))

    def on_device(step: Step) -> Step:
        tokens, wanted = place(step.tokens), place(step.last_rows)
        forms.inputs.extend((tokens, wanted))
        return replace(step, tokens=tokens, last_rows=wanted)

    hidden = place(torch.empty(sum(main.heights), spec.hidden_size, dtype=DTYPE, device="meta"))
    forms.inputs.append(hidden)
    return DecodeStep(
        model, backend, cache, on_device(main), tuple(map(on_device, drafts)), hidden, forms
    )


def _bind_batch(forms: Forms, batch: Batch, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
    forms.bind(batch.slots, place(batch.slots))
    forms.bind(batch.block_table, place(batch.block_table.to(torch.int32)))
    for table in (batch.rope.cos, batch.rope.sin):
        # Kernels turn halves of a head, so every angle is there twice.
        forms.bind(table, place(table.repeat(1, 2)))
