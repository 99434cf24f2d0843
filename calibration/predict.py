"""What the twin says for the setting of a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from calibration.measurement import END_TO_END, Measurement
from hardware_models.errors import InputError
from hardware_models.hardware import Hardware, load_hardware
from twin.deployment import Quantisation
from twin.engine.compiled import simulate
from twin.evaluate import latencies
from twin.graph.build import build_step_graph
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.schedule import CoreLimit, Schedule, Stage
from twin.schedule_io import load_schedule
from twin.validate import validate_schedule

# Op latencies are read in this layer of a step of so many: steady, and not the last one.
_LAYER, _LAYERS = 2, 4


@dataclass(frozen=True, slots=True)
class Setting:
    """A schedule to run for a group of measurements that share it."""

    schedule: Schedule
    model: ModelSpec


def setting_of(row: Measurement, acceptance: float | None = None) -> Setting:
    """The measurement's schedule with its batch, KV length, dies and next_n put in.

    The accepted drafts per step stay the shipped schedule's unless ``acceptance`` is given or
    the row drafts fewer tokens.  Core limits are those of the schedule.

    Raises:
        InputError: the row says why it cannot be run, or its dies, batch or cores cannot be
            laid out.
    """
    if row.reason:
        raise InputError("row", row.row, f"a row that can be run ({row.reason})")
    base = load_schedule(row.schedule)
    if base.deployment.is_afd != row.afd:
        raise InputError("afd", row.afd, f"what {row.schedule} deploys", row.row)
    dies = row.dies // 2 if row.afd else row.dies
    roles = {
        name: replace(role, dies=dies, ep=dies if role.ep > 1 else 1)
        for name, role in base.deployment.roles.items()
    }
    workload = replace(
        base.workload,
        global_batch=row.global_batch,
        kv_tokens=row.kv_tokens,
        next_n=row.next_n,
        acceptance=_acceptance(base, row.next_n) if acceptance is None else acceptance,
    )
    quantised: Quantisation = "bf16" if row.quantisation == "bf16" else "w8a8"
    deployment = replace(base.deployment, roles=roles, quantisation=quantised)
    hardware = load_hardware(row.hardware)
    stages = _with_cores(base.stages, row.cores, hardware) if row.cores else base.stages
    schedule = replace(base, workload=workload, deployment=deployment, stages=stages)
    model = load_model(schedule.model)
    validate_schedule(schedule, model, hardware)
    return Setting(schedule, model)


def _with_cores(
    stages: Sequence[Stage], cores: tuple[int, int], hardware: Hardware
) -> tuple[Stage, ...]:
    """Limited main streams get ``cores``, the streams beside them what is left of the die."""
    left = (hardware.count("aic_count") - cores[0], hardware.count("aiv_count") - cores[1])

    def limit(name: str, old: CoreLimit) -> CoreLimit:
        if old.aic is None:
            return old
        aic, aiv = cores if name == "main" else left
        return CoreLimit(aic=max(1, aic), aiv=max(1, aiv))

    return tuple(
        replace(stage, streams={name: limit(name, old) for name, old in stage.streams.items()})
        for stage in stages
    )


def _acceptance(base: Schedule, next_n: int) -> float:
    """Accepted drafts a step: the schedule's, or what fewer drafts leave of it.

    0.7 for one draft is what the recipe's team states for another model's single MTP layer.
    """
    if next_n == base.workload.next_n:
        return base.workload.acceptance
    return 0.7 if next_n == 1 else 0.0


def predict(
    rows: Sequence[Measurement], settings: Sequence[Setting], hardware: Hardware
) -> list[float]:
    """Predicted us for each row; rows with equal settings share one simulation."""
    ops: dict[str, dict[str, float]] = {}
    tpots: dict[str, float] = {}
    answers = []
    for row, setting in zip(rows, settings, strict=True):
        if row.kind == END_TO_END:
            if row.setting not in tpots:
                (tpots[row.setting],) = latencies(setting.schedule, setting.model, [hardware])
            answers.append(tpots[row.setting])
        else:
            if row.setting not in ops:
                ops[row.setting] = op_latencies(setting, hardware)
            answers.append(ops[row.setting][row.op])
    return answers


def check_op(row: Measurement, setting: Setting, hardware: Hardware) -> None:
    """Refuse an op that the setting's layers do not have on the main stream.

    Raises:
        InputError: names the ops that they have.
    """
    graph = build_step_graph(setting.schedule, setting.model, hardware, layers=1)
    known = {
        op.name.rpartition(".")[2]
        for op in graph.ops
        if op.name.startswith("layer.") and op.stream == "main" and not op.die
    }
    if row.op not in known:
        raise InputError("op", row.op, ", ".join(sorted(known)), row.row)


def op_latencies(setting: Setting, hardware: Hardware) -> dict[str, float]:
    """Mean latency in us of each main-stream op of a steady layer, by its last name.

    Where the schedule limits cores in a stage, only the ops under that limit count: a
    published latency names the cores that it ran on.
    """
    graph = build_step_graph(setting.schedule, setting.model, hardware, layers=_LAYERS)
    timeline = simulate(graph)
    full = hardware.count("aic_count")
    limited = any(
        limit.aic is not None and limit.aic < full
        for stage in setting.schedule.stages
        for name, limit in stage.streams.items()
        if name == "main"
    )
    times: dict[str, list[float]] = {}
    for op in graph.ops:
        if op.die or op.stream != "main" or not op.name.startswith(f"layer.{_LAYER}."):
            continue
        if limited and op.cores.aic == full:
            continue
        record = timeline.records[op.index]
        times.setdefault(op.name.rpartition(".")[2], []).append(record.end_us - record.start_us)
    return {name: sum(values) / len(values) for name, values in times.items()}
