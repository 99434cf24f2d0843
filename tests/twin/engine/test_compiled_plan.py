"""Candidates that share a plan give what each of them gives when built for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware, load_hardware
from twin.engine.compiled import Step, flatten, simulate
from twin.engine.compiled.period import with_more_layers
from twin.engine.compiled.plan import OtherStructureError, Plan
from twin.engine.options import EngineOptions
from twin.graph.build import build_step_graph
from twin.models import load_model
from twin.schedule import CoreLimit, Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import with_core_split, with_ratio

STOPS = EngineOptions(unfinished_prefetch="stops")


@cache
def colocated() -> Schedule:
    return load_schedule("recipe_colocated")


@cache
def hardware_of(schedule_name: str = "recipe_colocated") -> Hardware:
    return load_hardware(load_schedule(schedule_name).deployment.hardware)


def afd(ratio: int, micro_batches: int) -> Schedule:
    schedule = with_ratio(load_schedule("recipe_afd"), ratio)
    deployment = schedule.deployment
    assert deployment.afd is not None
    cut = replace(deployment.afd, micro_batches=micro_batches)
    return replace(schedule, deployment=replace(deployment, afd=cut))


def plan_of(schedule: Schedule) -> Plan:
    return Plan(schedule, load_model(schedule.model), hardware_of())


def makespan_us(schedule: Schedule, hardware: Hardware | None = None, *options: object) -> float:
    graph = build_step_graph(schedule, load_model(schedule.model), hardware or hardware_of())
    return simulate(graph, *options).makespan_us


def with_share(schedule: Schedule, weights: Sequence[str], share: float) -> Schedule:
    """These prefetches at a share of their size; at 0 they are left out."""
    kept = [p for p in schedule.prefetch if share or p.weight not in weights]
    return replace(
        schedule,
        prefetch=tuple(
            replace(p, bytes=round(p.bytes * share)) if p.weight in weights else p for p in kept
        ),
    )


FIRST = ("moe.router", "dense.0.gate_up")
LATER = ("attention.1.q_a", "attention.1.q_b", "attention.1.kv_a")
NEXT = ("next.attention.0.q_a", "next.attention.0.q_b", "next.attention.0.kv_a")
SHARES = [0.0, 0.4, 1.0, 2.5]
AIC = [8, 16, 20]


@pytest.mark.parametrize("options", [EngineOptions(), STOPS], ids=["continues", "stops"])
def test_grid_of_cores_and_prefetches(options: EngineOptions) -> None:
    base = colocated()
    knobs = {
        "cores": [with_core_split(base, "stage2", aic, hardware_of()) for aic in AIC],
        **{
            weights[0]: [with_share(base, weights, share) for share in SHARES]
            for weights in (FIRST, LATER, NEXT)
        },
    }
    levels = np.random.default_rng(5).integers(0, [3, 4, 4, 4], (12, 4))
    levels[0] = 0
    answers = plan_of(base).grid(knobs).evaluate(levels, options)
    for line, step_us in zip(levels.tolist(), answers.step_us, strict=True):
        schedule = with_core_split(base, "stage2", AIC[line[0]], hardware_of())
        for weights, level in zip((FIRST, LATER, NEXT), line[1:], strict=True):
            schedule = with_share(schedule, weights, SHARES[level])
        assert step_us == pytest.approx(makespan_us(schedule, None, options), rel=1e-9)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("ratio", [1, 3])
def test_afd_grid(ratio: int, micro_batches: int) -> None:
    base = afd(ratio, micro_batches)
    sides = (("moe.w2",), ("dense.0.gate_up", *LATER))
    knobs = {
        weights[0]: [with_share(base, weights, share) for share in SHARES] for weights in sides
    }
    levels = np.array([[0, 0], [0, 3], [1, 2], [3, 1]])
    answers = plan_of(base).grid(knobs).evaluate(levels)
    for line, step_us in zip(levels.tolist(), answers.step_us, strict=True):
        schedule = base
        for weights, level in zip(sides, line, strict=True):
            schedule = with_share(schedule, weights, SHARES[level])
        assert step_us == pytest.approx(makespan_us(schedule), rel=1e-9)


def test_other_hardware() -> None:
    plan = plan_of(colocated())
    others = [
        hardware_of().with_values(values)
        for values in (
            {"hbm_read_gbps": 1200.0, "l2_usable_bytes": 5e7},
            {"cube_head_us": 9.0, "launch_gap_graph_us": 2.5},
            {"l2_pollution": 0.0, "sdma_gbps": 300.0},
        )
    ]
    points = [plan.point_of(colocated(), hardware) for hardware in others]
    answers = plan.evaluate([plan.point, *points])
    for hardware, step_us in zip([hardware_of(), *others], answers.step_us, strict=True):
        assert step_us == pytest.approx(makespan_us(colocated(), hardware), rel=1e-9)


def test_layer_time() -> None:
    plan = plan_of(colocated())
    answers = plan.evaluate([plan.point])
    graph = build_step_graph(colocated(), load_model(colocated().model), hardware_of())
    ends = [simulate(graph).records[mark].end_us for mark in graph.period_marks]
    assert answers.layer_us[0] == pytest.approx(ends[-3] - ends[-4], rel=1e-9)


def test_eager_steps_have_plans_too() -> None:
    deployment = replace(colocated().deployment, graph_mode="eager")
    eager = replace(colocated(), deployment=deployment)
    plan = plan_of(eager)
    limited = with_core_split(eager, "stage2", 12, hardware_of())
    answers = plan.evaluate([plan.point, plan.point_of(limited)])
    assert answers.step_us[0] == pytest.approx(makespan_us(eager), rel=1e-9)
    assert answers.step_us[1] == pytest.approx(makespan_us(limited), rel=1e-9)
    with pytest.raises(OtherStructureError, match="prefetch"):
        plan.point_of(with_share(eager, FIRST, 0.0))


def test_steps_of_few_layers() -> None:
    tiny = load_schedule("tiny_colocated")
    answers = plan_of(tiny).evaluate([plan_of(tiny).point])
    assert answers.step_us[0] == pytest.approx(makespan_us(tiny), rel=1e-9)


def test_no_candidates() -> None:
    plan = plan_of(colocated())
    assert plan.evaluate([]).step_us.shape == (0,)
    assert plan.grid({}).evaluate(np.zeros((0, 0), int)).step_us.shape == (0,)


def test_other_structures_are_refused() -> None:
    plan = plan_of(colocated())
    one_stream = tuple(
        replace(stage, streams={"main": CoreLimit()}, join=None) for stage in colocated().stages
    )
    with pytest.raises(OtherStructureError, match="moe.cast"):
        plan.point_of(replace(colocated(), stages=one_stream))
    less = plan_of(with_share(colocated(), NEXT, 0.0))
    with pytest.raises(OtherStructureError, match="is not there"):
        less.point_of(colocated())
    moved = tuple(replace(p, after="dense.0.down") for p in colocated().prefetch)
    with pytest.raises(OtherStructureError):
        plan.point_of(replace(colocated(), prefetch=moved))
    with pytest.raises(OtherStructureError, match="aic_count"):
        plan.point_of(colocated(), hardware_of().with_values({"aic_count": 25.0}))


def test_knobs_of_the_same_ops_are_refused() -> None:
    splits = [with_core_split(colocated(), "stage2", aic, hardware_of()) for aic in AIC]
    with pytest.raises(OtherStructureError, match="one and other"):
        plan_of(colocated()).grid({"one": splits, "other": splits})


def test_bad_numbers_are_wrong_input() -> None:
    plan = plan_of(colocated())
    with pytest.raises(InputError, match="l2_pollution"):
        plan.point_of(colocated(), hardware_of().with_values({"l2_pollution": 2.0}))


@pytest.mark.parametrize(
    ("schedule", "built"),
    [(colocated(), 4), (afd(1, 1), 4), (afd(1, 2), 4), (afd(3, 1), 5), (afd(3, 2), 5)],
    ids=["colocated", "1:1", "1:1 twice", "3:1", "3:1 twice"],
)
def test_copied_layers_are_those_that_would_be_built(schedule: Schedule, built: int) -> None:
    model = load_model(schedule.model)
    whole = flatten(build_step_graph(schedule, model, hardware_of()))
    few = flatten(build_step_graph(schedule, model, hardware_of(), layers=built))
    copied = with_more_layers(few, model.num_layers - built)
    assert copied is not None
    for name, array in whole.arrays._asdict().items():
        if name not in ("ops", "rows", "read_bytes"):
            assert np.array_equal(array, getattr(copied.arrays, name)), name
    for name in whole.arrays.ops.dtype.names:
        assert np.array_equal(whole.arrays.ops[name], copied.arrays.ops[name]), name
    one, other = Step(whole), Step(copied)
    assert one.run()
    assert other.run()
    assert np.array_equal(one.records, other.records)


def test_layers_that_do_not_repeat_are_not_copied() -> None:
    deployment = replace(colocated().deployment, graph_mode="eager")
    graph = build_step_graph(
        replace(colocated(), deployment=deployment),
        load_model(colocated().model), hardware_of(), layers=5,
    )  # fmt: skip
    assert with_more_layers(flatten(graph), 3) is None
