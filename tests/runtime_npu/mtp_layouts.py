"""The jobs of the tests of drafts and int8 over real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from layouts import schedule_of

from runtime_npu.generate import Tokens
from runtime_npu.rank import Job
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
