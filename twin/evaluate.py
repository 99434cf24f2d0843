"""Evaluate a schedule: simulate its step and derive what a user compares schedules by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hardware_models.hardware import Hardware
from hardware_models.parameter import EVIDENCE_FROM_WEAKEST, Evidence
from twin.deployment import Role
from twin.engine.options import EngineOptions
from twin.engine.reference import simulate
from twin.engine.timeline import Timeline
from twin.graph.build import build_step_graph
from twin.graph.shapes import step_shapes
from twin.graph.step_graph import StepGraph
from twin.memory import MemoryLedger, memory_ledger
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

# Layer counts tried for a steady period before the whole step is run instead.
_STEADY_LAYERS = (4, 6, 8)
_STEADY_TOLERANCE = 1e-9


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
    ``timeline`` are there after a full run.
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
    interval_us: tuple[float, float] | None = None
    median_us: float | None = None
    graph: StepGraph | None = None
    timeline: Timeline | None = None


def evaluate(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    *,
    full: bool = True,
    options: EngineOptions | None = None,
) -> Evaluation:
    """Simulate one step.

    ``full`` simulates every layer and keeps graph and timeline.  Otherwise the layer
    period is read off a few layers: without jitter it repeats exactly, so the step is the
    same to rounding; where no steady period shows, the whole step is run.

    Raises:
        InputError: the schedule asks for something that is not simulated.
        DeadlockError: the schedule cannot finish.
    """
    options = options or EngineOptions()
    if full:
        run = _run(schedule, model, hardware, None, options)
        return _evaluation(schedule, model, hardware, run, keep=True)
    for layers in _STEADY_LAYERS:
        if layers >= model.num_layers:
            break
        run = _run(schedule, model, hardware, layers, options)
        ends = [run.timeline.records[i].end_us for i in run.graph.period_marks]
        last, before = ends[-2] - ends[-3], ends[-3] - ends[-4]
        if math.isclose(last, before, rel_tol=_STEADY_TOLERANCE):
            missing = model.num_layers - layers
            return _evaluation(
                schedule, model, hardware, run, keep=False, period_us=last, missing=missing
            )
    run = _run(schedule, model, hardware, None, options)
    return _evaluation(schedule, model, hardware, run, keep=False)


@dataclass(frozen=True, slots=True)
class _Run:
    graph: StepGraph
    timeline: Timeline


def _run(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    layers: int | None,
    options: EngineOptions,
) -> _Run:
    graph = build_step_graph(schedule, model, hardware, layers=layers)
    return _Run(graph, simulate(graph, options))


def _evaluation(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    run: _Run,
    *,
    keep: bool,
    period_us: float = 0.0,
    missing: int = 0,
) -> Evaluation:
    simulated = len(run.graph.period_marks)
    step_us = run.timeline.makespan_us + missing * period_us
    if simulated > 1:
        ends = [run.timeline.records[i].end_us for i in run.graph.period_marks]
        layer_us = ends[-1] - ends[-2] if missing == 0 else period_us
    else:
        layer_us = step_us
    workload, deployment = schedule.workload, schedule.deployment
    latency_us = step_us if workload.is_prefill else step_us / workload.tokens_per_step
    tokens = workload.global_batch * workload.tokens_per_step
    per_die = tokens / step_us * 1e6 / deployment.total_dies
    shapes = step_shapes(schedule, model)
    return Evaluation(
        schedule=schedule,
        step_us=step_us,
        layer_us=layer_us,
        latency_us=latency_us,
        tokens_per_s_per_die=per_die,
        tokens_per_s_per_chip=per_die * hardware["dies_per_chip"],
        memory=memory_ledger(schedule, model, hardware),
        active_experts=shapes.active_experts(max(shapes.micro_batches)),
        evidence=weakest_evidence(hardware),
        time_by_kind=_time_by_kind(run, missing),
        graph=run.graph if keep else None,
        timeline=run.timeline if keep else None,
    )


def weakest_evidence(hardware: Hardware) -> Evidence:
    """The weakest evidence among the parameters a prediction rests on."""
    return min((p.evidence for p in hardware), key=EVIDENCE_FROM_WEAKEST.index)


def _time_by_kind(run: _Run, missing: int) -> dict[str, float]:
    """Main stream of die 0 by op kind; a steady layer counts for the ``missing`` ones too."""
    marks = run.graph.period_marks
    repeated = range(marks[-3] + 1, marks[-2] + 1) if missing else range(0)
    times: dict[str, float] = {}
    for op in run.graph.ops:
        if op.die != 0 or op.stream != "main":
            continue
        record = run.timeline.records[op.index]
        weight = 1 + missing if op.index in repeated else 1
        times[op.kind] = times.get(op.kind, 0.0) + weight * (record.end_us - record.start_us)
        times[WAIT] = times.get(WAIT, 0.0) + weight * record.wait_us
    return dict(sorted(times.items()))


def with_interval(evaluation: Evaluation, spread: Spread) -> Evaluation:
    """The same evaluation with the interval of its latency, widened to hold the latency itself.

    Where two streams end together, any parameter that moves makes one of them later, so most
    draws can lie above the prediction: the median beside it says how optimistic it is.
    """
    latency_us = evaluation.latency_us
    held = (min(spread.low_us, latency_us), max(spread.high_us, latency_us))
    return replace(evaluation, interval_us=held, median_us=spread.median_us)
