"""Measurements, each in a process of its own on one core; what they return can be compared."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.cases import CASES, CLUSTERS, search_knobs
from benchmarks.plain import PlainStep
from benchmarks.process import in_own_process, peak_mb
from hardware_models.hardware import load_hardware
from twin.cluster.run import ClusterSimulation
from twin.engine import reference
from twin.engine.compiled import Step, flatten
from twin.engine.compiled.plan import Plan
from twin.models import load_model

Engine = Literal["simpy", "plain", "compiled"]
DISABLE_JIT = "NUMBA_DISABLE_JIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One engine on one graph: the fastest of some runs.

    ``answer`` is a digest over the start and the end of every op: equal where and only where
    all times are equal to the last bit.  ``peak_mb`` is the largest memory of the process.
    """

    seconds: float
    makespan_us: float
    answer: str
    ops: int
    dies: int
    events: int
    peak_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Steady-state evaluation of candidates that only differ in numbers."""

    candidates: int
    seconds: float
    plan_s: float
    grid_s: float
    largest_difference: float
    """Of some candidates, to a full run of their own graph; relative."""


def on_one_core(function: Callable[..., Any], *arguments: object, jit: bool = True) -> Any:
    """``function`` in a new process; without ``jit`` the compiled engine runs as plain Python."""
    with _environment(DISABLE_JIT, None if jit else "1"):
        return in_own_process(function, *arguments, start=_take_one_core)


def run_case(name: str, layers: int | None, engine: Engine, repeats: int) -> Measured:
    """Run one case on one engine ``repeats`` times after a first run that does not count."""
    graph = CASES[name].graph(layers)
    if engine == "simpy":
        timeline = reference.simulate(graph)
        seconds = _fastest(lambda: reference.simulate(graph), repeats)
        times = np.array([(record.start_us, record.end_us) for record in timeline.records])
        return _measured(seconds, timeline.makespan_us, times, len(graph.dies), 0)
    step = Step(flatten(graph))
    runner: Step | PlainStep = PlainStep(step) if engine == "plain" else step
    runner.run()
    seconds = _fastest(runner.run, repeats)
    if isinstance(runner, PlainStep):
        times = runner.times()
    else:
        times = np.stack([step.records.start_us, step.records.end_us], axis=1)
    return _measured(seconds, runner.makespan_us, times, len(graph.dies), step.events)


def run_cluster(name: str, layers: int | None, engine: Engine, repeats: int) -> Measured:
    """Run the coupled step of all dies of a cluster on one engine.

    The time is that of the step; drawing the loads of a seed comes before it.
    """
    case = CLUSTERS[name]
    schedule = case.load()
    simulation = ClusterSimulation(
        schedule,
        load_model(schedule.model),
        load_hardware(schedule.deployment.hardware),
        case.options,
        layers=layers,
    )
    dies, step = simulation.cluster.dies, simulation.step
    makespan_us = simulation.run(0).step_us
    if engine == "simpy":
        graph = simulation.step_graph()
        began = time.perf_counter()
        timeline = reference.simulate(graph)
        seconds = time.perf_counter() - began
        times = np.array([(record.start_us, record.end_us) for record in timeline.records])
        return _measured(seconds, timeline.makespan_us, times, dies, 0)
    seconds = _fastest(simulation.again, repeats)
    times = np.stack([step.records.start_us, step.records.end_us], axis=1)
    return _measured(seconds, makespan_us, times, dies, step.events)


def evaluate_many(name: str, count: int, repeats: int, checked: int) -> Evaluated:
    """Evaluate ``count`` candidates of a colocated case through one plan.

    Knob levels are turned into demands within the time that counts.
    """
    schedule = CASES[name].load()
    hardware, model = load_hardware(schedule.deployment.hardware), load_model(schedule.model)
    began = time.perf_counter()
    plan = Plan(schedule, model, hardware)
    planned = time.perf_counter()
    knobs = search_knobs(schedule)
    grid = plan.grid(knobs)
    built = time.perf_counter()
    every = itertools.product(*(range(len(each)) for each in knobs.values()))
    levels = np.resize(np.array(list(every)), (count, len(knobs)))
    answers = grid.evaluate(levels)
    seconds = _fastest(lambda: grid.evaluate(levels), repeats)
    worst = 0.0
    for i in np.linspace(0, count - 1, checked).astype(int).tolist():
        rows = grid.rows(levels[i : i + 1])
        whole_us = float(plan.step.run_many(rows)[0, 0])
        worst = max(worst, abs(answers.step_us[i] / whole_us - 1.0))
    return Evaluated(
        candidates=count,
        seconds=seconds,
        plan_s=planned - began,
        grid_s=built - planned,
        largest_difference=worst,
    )


def _measured(
    seconds: float, makespan_us: float, times: np.ndarray, dies: int, events: int
) -> Measured:
    return Measured(
        seconds=seconds,
        makespan_us=makespan_us,
        answer=hashlib.sha256(times.tobytes()).hexdigest(),
        ops=len(times),
        dies=dies,
        events=events,
        peak_mb=peak_mb(),
    )


def _fastest(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def _take_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    old = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if old is not None:
            os.environ[name] = old
