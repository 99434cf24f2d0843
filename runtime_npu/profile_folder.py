"""What a run measured as the folders of an Ascend profiler, one a rank: one step of median ops."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from hardware_models.ops import ExpertWait, GroupedMatMul
from runtime_npu.execute import RunResult
from runtime_npu.parallel.groups import Place, rank_of
from runtime_npu.profiled import RankProfile
from twin.cluster.build import Cluster, build_cluster
from twin.engine.timeline import OpRecord
from twin.graph.step_graph import PREFETCH_STREAM, Op
from twin.report.ascend import AscendWriter
from twin.report.ascend_rows import collective_of
from twin.schedule import Schedule
from twin.schedule_io import save_schedule

SCHEDULE = "schedule.yaml"
"""Beside the ranks' folders: the schedule with the batch and the KV length that ran."""

_QUIET_SHARE = 4
_LEAST_QUIET = 3


def write_profile(result: RunResult, folder: Path) -> None:
    """A folder for each rank.

    Names, streams, kinds and shapes are those of the step graph of what ran (the record of
    the run agrees with it), rows and experts of grouped products as routed.  Times are medians
    of wall times over the fastest quarter of the plain steps, in which other processes disturbed
    least; prefetches, which this backend does not do, take none.  An exchange holds the wait for
    its last member: its own time is that of the member that waited least.

    Raises:
        InputError: too few steps ran to profile one; the layout is no whole number of copies;
            a file cannot be written.
    """
    schedule = as_run(result)
    spec = result.job.source.spec
    cluster = build_cluster(schedule, spec, load_hardware(schedule.deployment.hardware))
    ranks = _ranks_of(result, cluster)
    quiet = _quiet_steps(list(ranks.values()))
    ops = {
        die: [_as_routed(op, own.routed) for op in cluster.ops_of(die)]
        for die, own in ranks.items()
    }
    meetings = _meetings(ops, ranks, quiet)
    steps_us = [max(own.steps[i].wall_us for own in ranks.values()) for i in quiet]
    measured: dict[str, object] = {
        "device": "cpu",
        "clock": "wall time: medians over the fastest quarter of the plain steps",
        "steps": len(ranks[0].steps),
        "quiet_steps": len(quiet),
        "step_us": statistics.median(steps_us),
        "all_steps_us": statistics.median(_walls(list(ranks.values()))),
    }
    writer = AscendWriter(folder, "measured")
    for die, own in ranks.items():
        about: dict[str, object] = {
            **measured,
            "running_share": _running(ops[die], own, quiet),
            "profiled_op_us": dict(own.profiled_us),
        }
        records = _records(ops[die], own, quiet, meetings)
        _, rank = cluster.rank(*divmod(die, len(cluster.template.dies)))
        writer.write(cluster.die(die), rank, ops[die], records, about)
    save_schedule(schedule, folder / SCHEDULE)


def as_run(result: RunResult) -> Schedule:
    """The schedule with the run's batch and the mean KV length of its steps."""
    job = result.job
    kv_tokens = round(job.mean_kv_tokens(result.reports[0].token_ids))
    workload = dataclasses.replace(
        job.schedule.workload, global_batch=len(job.prompts), kv_tokens=kv_tokens
    )
    return dataclasses.replace(job.schedule, workload=workload)


def _ranks_of(result: RunResult, cluster: Cluster) -> dict[int, RankProfile]:
    """What each die of the cluster measured."""
    found: dict[int, RankProfile] = {}
    width = len(cluster.template.dies)
    for die in range(cluster.dies):
        rank = rank_of(result.job.schedule.deployment, Place(*cluster.rank(*divmod(die, width))))
        profile = result.reports[rank].profile
        if profile is None or len(profile.steps) < _LEAST_QUIET:
            steps, least = result.job.max_new_tokens, 2 * (_LEAST_QUIET + 1)
            raise InputError("max_new_tokens", steps, f"{least} or more, to profile steps")
        found[die] = profile
    return found


def _walls(ranks: Sequence[RankProfile]) -> list[float]:
    """The slowest rank's wall time of every plain step."""
    steps = zip(*(rank.steps for rank in ranks), strict=True)
    return [max(own.wall_us for own in step) for step in steps]


def _quiet_steps(ranks: Sequence[RankProfile]) -> list[int]:
    """The fastest quarter of the steps, by their places: what other processes disturbed least."""
    walls = _walls(ranks)
    count = max(_LEAST_QUIET, len(walls) // _QUIET_SHARE)
    return sorted(sorted(range(len(walls)), key=lambda i: walls[i])[:count])


def _as_routed(op: Op, routed: Mapping[str, tuple[float, float]]) -> Op:
    if not isinstance(op.spec, GroupedMatMul) or op.name not in routed:
        return op
    rows, active = routed[op.name]
    spec = dataclasses.replace(op.spec, rows=rows, active_experts=max(1.0, active), groups=())
    return dataclasses.replace(op, spec=spec)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """An exchange: its own time, and each member's wait beyond that of the last to come."""

    own_us: float
    wait_us: Mapping[int, float]


def _meetings(
    ops: Mapping[int, Sequence[Op]], ranks: Mapping[int, RankProfile], quiet: Sequence[int]
) -> dict[str, _Meeting]:
    """Exchanges by their rendezvous.

    Clocks of ranks need not agree: in each step the member that came last took the least time.
    """
    members: dict[str, dict[int, str]] = {}
    for die, own in ops.items():
        for op in own:
            if op.rendezvous is not None:
                members.setdefault(op.rendezvous, {})[die] = op.name
    found = {}
    for key, names in members.items():
        times = {die: list(_times(ranks[die], name, quiet)) for die, name in names.items()}
        least = [min(step) for step in zip(*times.values(), strict=True)]
        waits = {
            die: statistics.median(us - own for us, own in zip(all_us, least, strict=True))
            for die, all_us in times.items()
        }
        first = min(waits.values())
        found[key] = _Meeting(statistics.median(least), {d: w - first for d, w in waits.items()})
    return found


def _times(rank: RankProfile, name: str, quiet: Sequence[int]) -> Iterator[float]:
    """An op's wall times in the quiet steps; what the backend does not do takes none."""
    for i in quiet:
        own = rank.steps[i].ops.get(name)
        yield own.wall_us if own else 0.0


def _running(ops: Sequence[Op], rank: RankProfile, quiet: Sequence[int]) -> float:
    """The share of the quiet steps' time, exchanges left out, in which the rank's thread ran."""
    alone = {op.name for op in ops if op.rendezvous is None and not waits_for_others(op)}
    times = [own for i in quiet for name, own in rank.steps[i].ops.items() if name in alone]
    return min(1.0, sum(own.cpu_us for own in times) / sum(own.wall_us for own in times))


def waits_for_others(op: Op) -> bool:
    """Whether an op's time is also that of other dies, with or without a rendezvous."""
    return isinstance(op.spec, ExpertWait) or collective_of(op.spec) != ""


def _records(
    ops: Sequence[Op],
    rank: RankProfile,
    quiet: Sequence[int],
    meetings: Mapping[str, _Meeting],
) -> dict[int, OpRecord]:
    """Ops in issue order, each from the end of the one before it."""
    clock = 0.0
    records = {}
    for op in ops:
        wait_us = 0.0
        if op.rendezvous is None:
            lasted_us = statistics.median(_times(rank, op.name, quiet))
        else:
            wait_us = meetings[op.rendezvous].wait_us[op.die]
            lasted_us = meetings[op.rendezvous].own_us + wait_us
        records[op.index] = OpRecord(
            index=op.index,
            start_us=clock,
            end_us=clock + lasted_us,
            wait_us=0.0,
            peer_wait_us=wait_us,
            body_us=lasted_us,
            resident_bytes=0.0,
            bound="latency",
            prefetch=op.stream == PREFETCH_STREAM,
        )
        clock += lasted_us
    return records
