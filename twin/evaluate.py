"""Evaluate a schedule: simulate its step and derive what a user compares schedules by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hardware_models.hardware import Hardware
from hardware_models.parameter import EVIDENCE_FROM_WEAKEST, Evidence
from twin.deployment import Role
from twin.engine.compiled import simulate
from twin.engine.compiled.plan import OtherStructureError, Plan
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.engine.timeline import Timeline
from twin.graph.build import build_step_graph
from twin.graph.shapes import step_shapes
from twin.graph.step_graph import StepGraph
from twin.memory import MemoryLedger, memory_ledger
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.workload import Workload


@dataclass(frozen=True, slots=True)
class Spread:
    """How a latency in us scatters over draws of the parameters: 80% interval and median."""

    low_us: float
    median_us: float
    high_us: float


WAIT = "wait"
"""Key of ``time_by_kind`` for time in which the main stream stood idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the twin says about one schedule.

    ``step_us`` is the step on the attention dies, MTP passes included.  ``latency_us`` is what
    schedules are compared by: in decode the TPOT, per accepted token, step / (1 + acceptance);
    in prefill the TTFT, the step itself (a prompt that waits for its step waits longer).
    Throughput counts the tokens done (new ones, or the prompts') and the whole deployment's
    dies.  ``time_by_kind`` adds up the main stream of die 0 by op kind, idle time under
    ``wait``.  ``interval_us`` is the 80% interval of the latency over the parameters' ranges
    where it was computed, ``median_us`` the median of the same draws.  ``graph`` and
    ``timeline`` are what was simulated.
    """

    schedule: Schedule
    step_us: float
    layer_us: float
    latency_us: float
    tokens_per_s_per_die: float
    tokens_per_s_per_chip: float
    memory: Mapping[Role, MemoryLedger]
    active_experts: float
    evidence: Evidence
    time_by_kind: Mapping[str, float]
    graph: StepGraph
    timeline: Timeline
    interval_us: tuple[float, float] | None = None
    median_us: float | None = None
    extrapolated: tuple[str, ...] = ()


def evaluate(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    *,
    options: EngineOptions = DEFAULT_OPTIONS,
) -> Evaluation:
    """Simulate one step, every layer of it.

    Raises:
        InputError: the schedule asks for something that is not simulated.
        DeadlockError: the schedule cannot finish.
    """
    graph = build_step_graph(schedule, model, hardware)
    timeline = simulate(graph, options)
    step_us = timeline.makespan_us
    ends = [timeline.records[i].end_us for i in graph.period_marks]
    latency_us = latency_of(schedule.workload, step_us)
    per_die = throughput_of(schedule, latency_us)
    shapes = step_shapes(schedule, model)
    return Evaluation(
        schedule=schedule,
        step_us=step_us,
        layer_us=ends[-1] - ends[-2] if len(ends) > 1 else step_us,
        latency_us=latency_us,
        tokens_per_s_per_die=per_die,
        tokens_per_s_per_chip=per_die * hardware["dies_per_chip"],
        memory=memory_ledger(schedule, model, hardware),
        active_experts=shapes.active_experts(max(shapes.micro_batches)),
        evidence=weakest_evidence(hardware),
        time_by_kind=_time_by_kind(graph, timeline),
        graph=graph,
        timeline=timeline,
    )


def latency_of(workload: Workload, step_us: float) -> float:
    """What schedules are compared by, in us: the TPOT in decode, the TTFT in prefill."""
    return step_us if workload.is_prefill else step_us / workload.tokens_per_step


def throughput_of(schedule: Schedule, latency_us: float) -> float:
    """Tokens per second and die of the whole deployment: new ones, or the prompts'."""
    workload = schedule.workload
    tokens = workload.global_batch * (workload.tokens_per_step if workload.is_prefill else 1)
    return tokens / latency_us * 1e6 / schedule.deployment.total_dies


def latencies(
    schedule: Schedule,
    model: ModelSpec,
    variants: Sequence[Hardware],
    options: EngineOptions = DEFAULT_OPTIONS,
) -> list[float]:
    """The latency in us on each of ``variants`` of the die, nothing else kept.

    As :func:`evaluate` to rounding, and faster: few layers are built, and those that only
    repeat are not simulated.

    Raises:
        InputError: the schedule asks for something that is not simulated.
        DeadlockError: the schedule cannot finish.
    """
    found: list[float] = []
    plan: Plan | None = None
    for hardware in variants:
        point = None
        if plan is not None:
            # Other hardware can also change which ops there are.
            with suppress(OtherStructureError):
                point = plan.point_of(schedule, hardware)
        if plan is None or point is None:
            plan = Plan(schedule, model, hardware)
            point = plan.point
        step_us = float(plan.evaluate([point], options).step_us[0])
        if math.isnan(step_us):
            # The full step says which ops wait for each other.
            step_us = simulate(build_step_graph(schedule, model, hardware), options).makespan_us
        found.append(latency_of(schedule.workload, step_us))
    return found


def weakest_evidence(hardware: Hardware) -> Evidence:
    """The weakest evidence among the parameters a prediction rests on."""
    return min((p.evidence for p in hardware), key=EVIDENCE_FROM_WEAKEST.index)


def _time_by_kind(graph: StepGraph, timeline: Timeline) -> dict[str, float]:
    """Main stream of die 0 by op kind."""
    times: dict[str, float] = {}
    for op, record in zip(graph.ops, timeline.records, strict=True):
        if op.die != 0 or op.stream != "main":
            continue
        times[op.kind] = times.get(op.kind, 0.0) + record.end_us - record.start_us
        times[WAIT] = times.get(WAIT, 0.0) + record.wait_us
    return dict(sorted(times.items()))


def with_interval(evaluation: Evaluation, spread: Spread, hardware: Hardware) -> Evaluation:
    """The same evaluation with the interval of its latency: :func:`interval_around` it.

    Where two streams end together, any parameter that moves makes one of them later, so most
    draws can lie above the prediction: the median beside it says how optimistic it is.
    """
    ends = interval_around(
        evaluation.latency_us, spread.low_us, spread.high_us, hardware["spread_step_tpot"]
    )
    return replace(evaluation, interval_us=ends, median_us=spread.median_us)


def interval_around(
    predicted_us: float, low_us: float, high_us: float, left_over: float
) -> tuple[float, float]:
    """80% interval of what a prediction would be measured as, in us.

    The ends ``low_us`` and ``high_us`` of the parameters' spread and ``left_over``, the 80%
    quantile of the absolute log errors that the fit left (``spread_step_*``), are independent:
    each side adds them in quadrature, in logarithms.
    """
    below = math.hypot(max(math.log(predicted_us / low_us), 0.0), left_over)
    above = math.hypot(max(math.log(high_us / predicted_us), 0.0), left_over)
    return predicted_us * math.exp(-below), predicted_us * math.exp(above)
