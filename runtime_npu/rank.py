"""What one rank does: its part of the model, its side of the generation, its record checked."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hardware_models.errors import MachineError
from hardware_models.hardware import Hardware, load_hardware
from runtime_npu.backends.base import Backend
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.checkpoint import Checkpoint, load_weights
from runtime_npu.compare import differences
from runtime_npu.executor import Executor, ModelExecutor
from runtime_npu.generate import Decoder, Tokens, generate, rank_blocks
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.npu.place import npu_backend, npu_executor
from runtime_npu.npu.profiler import StepProfiledDecoder, noted_of, step_profiler
from runtime_npu.options import Device
from runtime_npu.parallel.groups import Place, graph_die
from runtime_npu.parallel.world import World
from runtime_npu.plan import for_prompts, layer_plan, prefill_order
from runtime_npu.profiled import ProfiledBackend, ProfiledDecoder, RankProfile, one_thread
from runtime_npu.record import OpRecord
from runtime_npu.sampling import Sampling
from runtime_npu.source import WeightSource, contents_of
from twin.graph.build import build_step_graph
from twin.graph.step_graph import StepGraph
from twin.schedule import Schedule

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "w8a8": torch.bfloat16}
"""Of all that is not quantised."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all ranks are told: checked, so that only the weights can still be at fault."""

    schedule: Schedule
    source: WeightSource
    prompts: tuple[Tokens, ...]
    max_new_tokens: int
    cache_tokens: int | None
    sampling: Sampling | None
    profile: bool = False
    device: Device = "cpu"
    warmup_steps: int = 0
    compile_cache: Path | None = None
    profile_folder: Path | None = None

    @property
    def lengths(self) -> list[int]:
        """The most tokens that each sequence reaches, drafts that are dropped included."""
        more = self.max_new_tokens - 1 + self.schedule.workload.next_n
        return [len(prompt) + more for prompt in self.prompts]

    def mean_kv_tokens(self, token_ids: Sequence[Tokens]) -> float:
        """Tokens in a sequence's cache over its decode steps, which gave the new ``token_ids``."""
        ends = zip(self.prompts, token_ids, strict=True)
        return statistics.mean(len(prompt) + len(new) / 2 for prompt, new in ends)


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank gives back.

    ``token_ids``, the wall times and ``accepted`` are those of
    :class:`runtime_npu.generate.Generation`; ``ops`` is the record of a step of the schedule's
    phase, ``differences`` is empty where that and the step graph agree.  ``profile`` is there
    where the job asked for one; ``forward_s`` is how long a step's passes held the device.
    """

    place: Place
    token_ids: tuple[Tokens, ...]
    prefill_s: float
    step_s: tuple[float, ...]
    forward_s: tuple[float, ...]
    accepted: tuple[tuple[int, ...], ...]
    ops: tuple[OpRecord, ...]
    differences: tuple[str, ...]
    profile: RankProfile | None = None


def run_rank(job: Job, rank: int) -> Report:
    """Prefill all prompts, decode them, compare what was issued with the step graph.

    Raises:
        InputError: the checkpoint is not that of the model.
        MachineError: a cache larger than memory.
    """
    hardware = load_hardware(job.schedule.deployment.hardware)
    if job.device == "npu":
        return _run(job, rank, npu_backend(hardware, rank), hardware)
    if job.profile:
        with one_thread():
            return _run(job, rank, ProfiledBackend(), hardware)
    return _run(job, rank, ReferenceBackend(), hardware)


def _run(job: Job, rank: int, backend: Backend, hardware: Hardware) -> Report:
    world = World(job.schedule.deployment, rank)
    if world.size > 1 and not job.profile:
        # Ranks share this machine's cores.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world.size))
    model = build_model(job.schedule, job.source, world, backend)
    lengths = job.lengths
    blocks = rank_blocks(world.deployment, rank, lengths, job.cache_tokens)
    try:
        executor = _executor(job, model, world, backend, hardware)
        kind = _decoder_kind(job)
        decoder = kind(model, lengths, blocks, world, sampling=job.sampling, executor=executor)
    except RuntimeError as error:  # the allocator's answer to a cache that memory cannot hold
        asked = f"{blocks} cache blocks"
        raise MachineError(f"{asked} do not fit in this machine's memory ({error})") from None
    if isinstance(decoder, ProfiledDecoder) and isinstance(backend, ProfiledBackend):
        decoder.watch(backend, plain=job.max_new_tokens // 2)
    skipped = job.max_new_tokens // (2 * job.schedule.workload.rows_per_sequence)
    if isinstance(decoder, StepProfiledDecoder):
        assert job.profile_folder is not None
        profiler = step_profiler(job.profile_folder, rank)
        decoder.watch(profiler, first=job.warmup_steps + skipped)
    generation = generate(
        decoder, job.prompts, job.max_new_tokens, job.source.end_tokens, job.warmup_steps
    )
    if isinstance(decoder, StepProfiledDecoder) and job.profile_folder is not None:
        kv_tokens = job.mean_kv_tokens(generation.token_ids)
        noted = noted_of(world.deployment, kv_tokens, generation.forward_s, skipped)
        decoder.finish(job.profile_folder, rank, noted)
    schedule = for_prompts(job.schedule, [len(prompt) for prompt in job.prompts])
    graph = build_step_graph(schedule, job.source.spec, hardware)
    is_prefill = schedule.workload.is_prefill
    planned = (generation.prefill_ops,) if is_prefill else generation.steps
    return Report(
        place=world.place,
        token_ids=generation.token_ids,
        prefill_s=generation.prefill_s,
        step_s=generation.step_s,
        forward_s=generation.forward_s,
        accepted=generation.accepted,
        ops=planned[0] if planned else (),
        differences=tuple(step_differences(planned, graph, world)),
        profile=decoder.found() if isinstance(decoder, ProfiledDecoder) else None,
    )


def _decoder_kind(job: Job) -> type[Decoder]:
    if not job.profile:
        return Decoder
    return StepProfiledDecoder if job.device == "npu" else ProfiledDecoder


def _executor(
    job: Job, model: LongcatFlash | FfnDie, world: World, backend: Backend, hardware: Hardware
) -> Executor:
    if not isinstance(backend, NpuBackend):
        return ModelExecutor(model)
    return npu_executor(
        model, backend, world, hardware, job.schedule, job.source.spec, job.compile_cache
    )


def build_model(
    schedule: Schedule,
    source: WeightSource,
    world: World,
    backend: Backend | None = None,
) -> LongcatFlash | FfnDie:
    """The rank's part of the schedule's model, its weights loaded; default: reference backend.

    Raises:
        InputError: the checkpoint is not that of the model.
    """
    dtype = DTYPES[schedule.deployment.quantisation]
    kind = FfnDie if world.place.role == "ffn" else LongcatFlash
    model = kind(
        source.spec,
        backend or ReferenceBackend(),
        layer_plan(schedule, world.place.role),
        world,
        dtype=dtype,
        prefill=prefill_order(schedule),
        next_n=schedule.workload.next_n,
    )
    contents = contents_of(schedule)
    with Checkpoint(source.folder, source.spec, source.dtype, contents) as checkpoint:
        load_weights(model, checkpoint, dtype)
    return model


def step_differences(
    steps: tuple[tuple[OpRecord, ...], ...], graph: StepGraph, world: World
) -> list[str]:
    """Differences of the first step to the graph, and of later steps to the first."""
    if not steps:
        return []
    found = [
        *differences(steps[0], graph, graph_die(world.deployment, world.place)),
        *(
            f"step {number}: issued other ops than the first step"
            for number, step in enumerate(steps)
            if step != steps[0]
        ),
    ]
    name = "" if world.size == 1 else f"{world.place.role} {world.place.number}: "
    return [name + line for line in found]
