"""What a run measured as the folder of an Ascend profiler: one step of median ops."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from hardware_models.ops import GroupedMatMul
from runtime_npu.execute import RunResult
from runtime_npu.parallel.groups import graph_die
from runtime_npu.profiled import RankProfile, StepTime
from twin.engine.timeline import OpRecord, Timeline
from twin.graph.build import build_step_graph
from twin.graph.step_graph import PREFETCH_STREAM, Op, StepGraph
from twin.report.ascend import write_ascend
from twin.schedule import Schedule
from twin.schedule_io import save_schedule

SCHEDULE = "schedule.yaml"
"""Beside the ranks' folders: the schedule with the batch and the KV length that ran."""


def write_profile(result: RunResult, folder: Path) -> None:
    """A folder for each die of the step graph, measured on the first rank that it stands for.

    Names, streams, kinds and shapes are those of the step graph of what ran (the record of
    the run agrees with it), rows and experts of grouped products as routed.  Times are median
    CPU times; prefetches, which this backend does not do, take none.

    Raises:
        InputError: too few steps ran to profile one; a file cannot be written.
    """
    schedule = as_run(result)
    spec = result.job.source.spec
    graph = build_step_graph(schedule, spec, load_hardware(schedule.deployment.hardware))
    ranks = _ranks_of(result, graph)
    ops = [_as_routed(op, ranks[op.die].routed) for op in graph.ops]
    graph = dataclasses.replace(graph, ops=tuple(ops))
    walls = ranks[0].op_wall_us
    measured: dict[str, object] = {
        "device": "cpu",
        "kv_tokens": schedule.workload.kv_tokens,
        "ep": max(role.ep for role in schedule.deployment.roles.values()),
        "clock": "CPU time of the rank's thread",
        **_step_times(ranks[0].steps),
        "profiled_step_wall_us": sum(walls.values()),
        "op_wall_us": dict(walls),
    }
    write_ascend(folder, graph, _timeline(graph, ranks), measured, "measured")
    save_schedule(schedule, folder / SCHEDULE)


def as_run(result: RunResult) -> Schedule:
    """The schedule with the run's batch and the mean KV length of its steps."""
    job = result.job
    ends = zip(job.prompts, result.reports[0].token_ids, strict=True)
    mean = statistics.mean(len(prompt) + len(new) / 2 for prompt, new in ends)
    workload = dataclasses.replace(
        job.schedule.workload, global_batch=len(job.prompts), kv_tokens=round(mean)
    )
    return dataclasses.replace(job.schedule, workload=workload)


def _ranks_of(result: RunResult, graph: StepGraph) -> dict[int, RankProfile]:
    """The first rank that each die of the graph stands for."""
    found: dict[int, RankProfile] = {}
    for report in result.reports:
        if report.profile is None or not report.profile.op_us or not report.profile.steps:
            steps, allowed = result.job.max_new_tokens, "6 or more, so that steps can be profiled"
            raise InputError("max_new_tokens", steps, allowed)
        die = graph_die(result.job.schedule.deployment, report.place)
        found.setdefault(die, report.profile)
    return {die.index: found[die.index] for die in graph.dies}


def _as_routed(op: Op, routed: Mapping[str, tuple[float, float]]) -> Op:
    if not isinstance(op.spec, GroupedMatMul) or op.name not in routed:
        return op
    rows, active = routed[op.name]
    spec = dataclasses.replace(op.spec, rows=rows, active_experts=max(1.0, active), groups=())
    return dataclasses.replace(op, spec=spec)


def _timeline(graph: StepGraph, ranks: Mapping[int, RankProfile]) -> Timeline:
    """Ops in issue order, each from the end of the one before it on its die."""
    clocks = dict.fromkeys(ranks, 0.0)
    records = []
    for op in graph.ops:
        start = clocks[op.die]
        clocks[op.die] = end = start + ranks[op.die].op_us.get(op.name, 0.0)
        records.append(
            OpRecord(
                index=op.index,
                start_us=start,
                end_us=end,
                wait_us=0.0,
                peer_wait_us=0.0,
                body_us=end - start,
                resident_bytes=0.0,
                bound="latency",
                prefetch=op.stream == PREFETCH_STREAM,
            )
        )
    return Timeline(tuple(records))


def _step_times(steps: tuple[StepTime, ...]) -> dict[str, object]:
    """Medians of the plain steps: CPU time and wall time."""
    wall, cpu = ([getattr(step, name) for step in steps] for name in ("wall_us", "cpu_us"))
    return {
        "steps": len(steps),
        "step_us": statistics.median(cpu),
        "step_wall_us": statistics.median(wall),
    }
