"""Prefill schedules to try, what a rank does in the tests of them, and mistakes to find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from layouts import BLOCK_TOKENS, HARDWARE, LayoutReport, logits_of

from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.checkpoint import Checkpoint, load_weights
from runtime_npu.generate import Decoder, rank_blocks
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.parallel.world import World
from runtime_npu.plan import for_prompts, layer_plan, prefill_order
from runtime_npu.rank import step_differences
from runtime_npu.record import Event
from runtime_npu.weights import Contents
from twin.deployment import Deployment
from twin.graph.build import build_step_graph
from twin.model_spec import ModelSpec
from twin.schedule import CoreLimit, MoePlan, PrefillPlan, Schedule, Stage
from twin.validate import validate_schedule
from twin.workload import Workload


def prefill_of(
    deployment: Deployment,
    *,
    chunk: int | None = None,
    micro_batches: int = 1,
    link: bool = False,
) -> Schedule:
    """A prefill schedule for a deployment; its traffic is that of nobody's prompts."""
    streams = {"main": CoreLimit(), **({"link": CoreLimit()} if link else {})}
    return Schedule(
        format=1,
        model="test",
        workload=Workload(phase="prefill", global_batch=4096, kv_tokens=16),
        deployment=replace(deployment, graph_mode="eager"),
        stages=(Stage(name="prefill", streams=streams),),
        moe=MoePlan(chunk_tokens=chunk),
        prefill=PrefillPlan(micro_batches=micro_batches),
    )


@dataclass(frozen=True)
class PrefillJob:
    """Prefill of ``prompts`` by a schedule, then greedy decoding, with a checkpoint."""

    schedule: Schedule
    spec: ModelSpec
    folder: Path
    prompts: tuple[tuple[int, ...], ...]
    steps: int
    backend: type[ReferenceBackend] = ReferenceBackend


def run_prefill(job: PrefillJob, rank: int) -> LayoutReport:
    """What a rank finds, its prefill's record beside the step graph."""
    world = World(job.schedule.deployment, rank)
    schedule = for_prompts(job.schedule, [len(prompt) for prompt in job.prompts])
    validate_schedule(schedule, job.spec, HARDWARE)
    order = prefill_order(schedule)
    model = LongcatFlash(job.spec, job.backend(), layer_plan(schedule), world, prefill=order)
    with Checkpoint(job.folder, job.spec, None, Contents()) as checkpoint:
        load_weights(model, checkpoint, torch.float32)
    lengths = [len(prompt) + job.steps for prompt in job.prompts]
    blocks = rank_blocks(schedule.deployment, world.rank, lengths, None, BLOCK_TOKENS)
    decoder = Decoder(model, lengths, blocks, world, block_tokens=BLOCK_TOKENS)
    outputs = [decoder.prefill(job.prompts)]
    record = decoder.recorder.take()
    for _ in range(job.steps - 1):
        outputs.append(decoder.step(outputs[-1].tokens.tolist()))
    graph = build_step_graph(schedule, job.spec, HARDWARE)
    return LayoutReport(
        tokens=[output.tokens.tolist() for output in outputs],
        logits=logits_of(decoder, job.prompts, world, outputs),
        differences=step_differences((record,), graph, world),
    )


class ForgetsZeroExperts(ReferenceBackend):
    """Sums real experts alone."""

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
        nothing = torch.zeros_like(x)
        return super().finalize_routing(rows, source, nothing, ids, weights, experts=experts)


class KeepsRowsHome(ReferenceBackend):
    """Exchanges no rows: takes its own for those that should have come."""

    def exchange_rows(
        self,
        rows: torch.Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        group: Communicator,
    ) -> torch.Tensor:
        here = rows.new_zeros(sum(received), rows.shape[1])
        count = min(len(here), len(rows))
        here[:count] = rows[:count]
        return here


class SkipsTheWayBack(ReferenceBackend):
    """Does not say that rows go back."""

    def launch(self, name: str, kind: str) -> Event:
        if name.endswith("back_all_to_all"):
            return Event(name, "main")
        return super().launch(name, kind)


class ReadsTooEarly(ReferenceBackend):
    """The host reads the counts without waiting for them."""

    def wait(self, event: Event) -> None:
        if not event.after.endswith("count_all_to_all"):
            super().wait(event)


class ExchangesOnMain(ReferenceBackend):
    """Leaves the link stream out."""

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        with super().stream("main" if name == "link" else name):
            yield
