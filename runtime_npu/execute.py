"""Executing a schedule: model, weights, prompts, generation, and the check of the record."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from hardware_models.errors import InputError, MachineError
from hardware_models.hardware import load_hardware
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.checkpoint import Checkpoint, load_weights
from runtime_npu.compare import differences
from runtime_npu.generate import Decoder, Generation, generate
from runtime_npu.kv_cache import pool_blocks
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.options import RunOptions
from runtime_npu.plan import check_supported, layer_plan
from runtime_npu.prompts import Prompts, read_prompts
from runtime_npu.record import OpRecord
from runtime_npu.source import WeightSource, weight_source
from twin.graph.build import build_step_graph
from twin.graph.step_graph import StepGraph
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.validate import validate_schedule

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run gave; ``differences`` is empty when record and step graph agree."""

    schedule: Schedule
    model: ModelSpec
    prompts: Prompts
    generation: Generation
    texts: tuple[str, ...] | None
    differences: tuple[str, ...]


def execute(options: RunOptions, scratch: Path) -> RunResult:
    """Prefill all prompts, decode them greedily, compare what was issued with the step graph.

    A random checkpoint that nobody asked to keep is made in the folder ``scratch``.

    Raises:
        InputError: anything in schedule, checkpoint, prompts or options that is wrong or not
            executed; raised before any compute where it can be known then.
        MachineError: text prompts, and no tokenizer library; a cache larger than memory.
    """
    if options.max_new_tokens < 1:
        raise InputError("max_new_tokens", options.max_new_tokens, "1 or more")
    schedule = load_schedule(options.schedule)
    check_supported(schedule, options.schedule)
    source = weight_source(options, schedule, scratch)
    # The checkpoint's model need not be the one that the schedule was written for.
    schedule = dataclasses.replace(schedule, model=source.spec.name)
    hardware = load_hardware(schedule.deployment.hardware)
    validate_schedule(schedule, source.spec, hardware)
    prompts = read_prompts(options, source)

    lengths = [len(prompt) + options.max_new_tokens for prompt in prompts.ids]
    blocks = pool_blocks(lengths, options.cache_tokens)

    model = build_model(schedule, source)
    try:
        decoder = Decoder(model, lengths, blocks)
    except RuntimeError as error:  # the allocator's answer to a cache that memory cannot hold
        asked = f"{blocks} cache blocks"
        raise MachineError(f"{asked} do not fit in this machine's memory ({error})") from None
    generation = generate(decoder, prompts.ids, options.max_new_tokens, source.end_tokens)
    graph = build_step_graph(schedule, source.spec, hardware)
    return RunResult(
        schedule=schedule,
        model=source.spec,
        prompts=prompts,
        generation=generation,
        texts=prompts.decode(generation.token_ids),
        differences=tuple(step_differences(generation.steps, graph)),
    )


def build_model(schedule: Schedule, source: WeightSource) -> LongcatFlash:
    """The schedule's model on the reference backend, its weights loaded.

    Raises:
        InputError: the checkpoint is not that of the model.
    """
    dtype = DTYPES[schedule.deployment.quantisation]
    model = LongcatFlash(
        source.spec,
        ReferenceBackend(),
        layer_plan(schedule),
        dtype=dtype,
        chunk_tokens=schedule.moe.chunk_tokens,
    )
    with Checkpoint(source.folder, source.spec, source.dtype) as checkpoint:
        load_weights(model, checkpoint, dtype)
    return model


def step_differences(steps: tuple[tuple[OpRecord, ...], ...], graph: StepGraph) -> list[str]:
    """Differences of the first decode step to the graph, and of later steps to the first."""
    if not steps:
        return []
    changed = [
        f"step {number}: issued other ops than the first step"
        for number, step in enumerate(steps)
        if step != steps[0]
    ]
    return differences(steps[0], graph) + changed
