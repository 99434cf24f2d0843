"""What a rank does in the tests of drafts and int8 over real processes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from layouts import schedule_of

from runtime_npu.generate import Tokens
from runtime_npu.parallel.rendezvous import Meeting, met
from runtime_npu.rank import Job, Report, run_rank
from runtime_npu.source import WeightSource
from twin.deployment import Deployment, Quantisation
from twin.model_spec import ModelSpec

NEW = 12


def job_of(
    deployment: Deployment,
    model_spec: ModelSpec,
    folder: Path,
    prompts: tuple[Tokens, ...],
    next_n: int,
    quantisation: Quantisation = "fp32",
) -> Job:
    deployment = replace(deployment, quantisation=quantisation)
    schedule = schedule_of(deployment, len(prompts))
    schedule = replace(schedule, workload=replace(schedule.workload, next_n=next_n))
    return Job(schedule, WeightSource(folder, model_spec, None, ()), prompts, NEW, None, None)


def run_here(job: Job, port: int | None, rank: int) -> Report:
    """One rank of a job; ``port`` is where its ranks meet (``None``: it is alone)."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        if port is not None:
            meeting = Meeting(rank, job.schedule.deployment.total_dies, port)
            stack.enter_context(met(meeting))
        return run_rank(job, rank)
