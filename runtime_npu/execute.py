"""Executing a schedule: everything checked, then one rank for each die of the deployment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from runtime_npu.generate import rank_blocks
from runtime_npu.npu.check import check_for_npu, check_prompts
from runtime_npu.options import Device, RunOptions
from runtime_npu.parallel.launch import run_as_rank, run_ranks
from runtime_npu.parallel.rendezvous import torchrun_meeting
from runtime_npu.plan import check_supported, for_prompts
from runtime_npu.prompts import Prompts, read_prompts
from runtime_npu.rank import Job, Report, run_rank
from runtime_npu.sampling import sampling
from runtime_npu.source import weight_source
from twin.schedule_io import load_schedule
from twin.validate import validate_schedule

WARMUP_STEPS: Mapping[Device, int] = {"cpu": 0, "npu": 3}
"""Where nobody says how many: on an NPU the first step compiles graphs."""

PROFILE = "profile"
"""The run's folder of what it measured."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run gave: ``reports`` of all ranks, in rank order."""

    job: Job
    prompts: Prompts
    reports: tuple[Report, ...]
    texts: tuple[str, ...] | None

    @property
    def differences(self) -> tuple[str, ...]:
        """Where ranks issued other ops than the step graph has; empty: they agree."""
        return tuple(line for report in self.reports for line in report.differences)


def execute(options: RunOptions, folder: Path) -> RunResult | None:
    """Prefill all prompts, decode them, compare what was issued with the step graph.

    The ranks are processes started here; under torchrun this process is one of them, and
    only that of rank 0 gets the result (the others ``None``).  The run ``folder`` gets a random
    checkpoint where nobody asked to keep one, and the profiles that NPUs write.

    Raises:
        InputError: anything in schedule, checkpoint, prompts or options that is wrong or not
            executed; raised before any compute where it can be known then.
        MachineError: text prompts, and no tokenizer library; a cache larger than memory.
        PeerLostError: a rank of torchrun's has ended.
        RankError: a rank failed otherwise.
    """
    on_npus = options.device == "npu"
    meeting = torchrun_meeting(on_npus=on_npus)
    if meeting is not None and meeting.rank > 0:
        run_as_rank(run_rank, None, meeting)
        return None
    job, prompts = _prepared(options, folder)
    ranks = job.schedule.deployment.total_dies
    if meeting is not None:
        if meeting.ranks != ranks:
            raise InputError("torchrun ranks", meeting.ranks, f"{ranks}, one for each die")
        reports = run_as_rank(run_rank, job, meeting)
    else:
        is_apart = ranks > 1 or on_npus
        reports = (
            run_ranks(run_rank, job, ranks, on_npus=on_npus) if is_apart else [run_rank(job, 0)]
        )
    return RunResult(job, prompts, tuple(reports), prompts.decode(reports[0].token_ids))


def _prepared(options: RunOptions, folder: Path) -> tuple[Job, Prompts]:
    if options.max_new_tokens < 1:
        raise InputError("max_new_tokens", options.max_new_tokens, "1 or more")
    if options.warmup_steps is not None and options.warmup_steps < 0:
        raise InputError("warmup_steps", options.warmup_steps, "0 or more, or null")
    schedule = load_schedule(options.schedule)
    check_supported(schedule, options.schedule)
    if options.device == "npu":
        check_for_npu(options, schedule)
    elif options.compile_cache is not None:
        raise InputError("compile_cache", options.compile_cache, "null with device=cpu")
    if options.profile and schedule.workload.is_prefill:
        raise InputError("profile", options.profile, "false in prefill: decode steps are timed")
    source = weight_source(options, schedule, folder / "checkpoint")
    # The checkpoint's model need not be the one that the schedule was written for.
    schedule = dataclasses.replace(schedule, model=source.spec.name)
    hardware = load_hardware(schedule.deployment.hardware)
    validate_schedule(schedule, source.spec, hardware)
    is_planned = options.profile or options.device == "npu"
    prompts = read_prompts(options, source, schedule.workload if is_planned else None)
    lengths = [len(ids) for ids in prompts.ids]
    if options.device == "npu":
        check_prompts(schedule, len(lengths))
    validate_schedule(for_prompts(schedule, lengths), source.spec, hardware)
    job = Job(
        schedule,
        source,
        prompts.ids,
        options.max_new_tokens,
        options.cache_tokens,
        sampling(options.temperature, options.top_p, options.seed),
        options.profile,
        options.device,
        WARMUP_STEPS[options.device] if options.warmup_steps is None else options.warmup_steps,
        None if options.compile_cache is None else Path(options.compile_cache).absolute(),
        folder.absolute() / PROFILE,
    )
    for rank in range(schedule.deployment.total_dies):
        rank_blocks(schedule.deployment, rank, job.lengths, options.cache_tokens)
    return job, prompts
