"""Skipping layers that repeat changes no time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_graphs import KB, Builder, hardwares
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_models.demand import WeightRead
from hardware_models.hardware import load_hardware
from twin.engine.compiled import Step, flatten
from twin.engine.options import EngineOptions
from twin.graph.build import build_step_graph
from twin.graph.step_graph import StepGraph
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import with_core_split, with_ratio

OPTIONS = [
    EngineOptions(contention=contention, unfinished_prefetch=mode)
    for contention in (True, False)
    for mode in ("continues", "stops")
]


def graph_of(schedule: Schedule) -> StepGraph:
    hardware = load_hardware(schedule.deployment.hardware)
    return build_step_graph(schedule, load_model(schedule.model), hardware)


def skipped(graph: StepGraph, options: EngineOptions) -> int:
    """Run in full and steadily, compare, and count the ops that were not simulated."""
    step = Step(flatten(graph))
    assert step.run(options)
    full_us = step.makespan_us
    step.records.end_us[:] = -1.0
    assert step.run(options, steady=True)
    assert step.makespan_us == pytest.approx(full_us, rel=1e-9)
    return int((step.records.end_us < 0.0).sum())


def with_sizes(schedule: Schedule, share: float) -> Schedule:
    sized = tuple(replace(p, bytes=round(p.bytes * share)) for p in schedule.prefetch)
    return replace(schedule, prefetch=sized)


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
@pytest.mark.parametrize("share", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("aic", [8, 16, 20])
def test_colocated_steps(aic: int, share: float, options: EngineOptions) -> None:
    schedule = load_schedule("recipe_colocated")
    hardware = load_hardware(schedule.deployment.hardware)
    schedule = with_sizes(with_core_split(schedule, "stage2", aic, hardware), share)
    assert skipped(graph_of(schedule), options) > 20 * 48


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("ratio", [1, 3])
def test_afd_steps(ratio: int, micro_batches: int, options: EngineOptions) -> None:
    schedule = with_ratio(load_schedule("recipe_afd"), ratio)
    assert schedule.deployment.afd is not None
    afd = replace(schedule.deployment.afd, micro_batches=micro_batches)
    graph = graph_of(replace(schedule, deployment=replace(schedule.deployment, afd=afd)))
    assert skipped(graph, options) > 0.6 * len(graph.ops)


def test_eager_launches_do_not_repeat() -> None:
    """Host launches are times from the start of the step, so the whole step is run."""
    schedule = load_schedule("recipe_colocated")
    eager = replace(schedule, deployment=replace(schedule.deployment, graph_mode="eager"))
    assert skipped(graph_of(eager), EngineOptions()) == 0


def test_period_is_the_time_of_a_layer() -> None:
    graph = graph_of(load_schedule("recipe_colocated"))
    step = Step(flatten(graph))
    step.run()
    ends = [step.records.end_us[mark] for mark in graph.period_marks]
    step.run(steady=True)
    assert step.period_us == pytest.approx(ends[-3] - ends[-4], rel=1e-12)


LAYERS = 12
_us = st.integers(0, 6).map(float) | st.floats(0.0, 6.0, allow_subnormal=False)
_bytes = st.integers(0, 30).map(lambda n: n * KB) | st.floats(0.0, 30 * KB, allow_subnormal=False)


@st.composite
def _template(draw: st.DrawFn, dies: int) -> list[dict[str, Any]]:
    """Ops of a layer; ``after`` are places in the same layer, ``before`` in the one before."""
    items: list[dict[str, Any]] = []
    kinds = ["op", "op", "op", "collective", "transfer", "prefetch"]
    for at in range(draw(st.integers(2, 8))):
        kind = draw(st.sampled_from(kinds))
        usable = [i for i, item in enumerate(items) if item["kind"] != "prefetch"]
        item = {
            "kind": kind,
            "die": draw(st.integers(0, dies - 1)),
            "stream": draw(st.sampled_from(["main", "moe"])),
            "cores": (draw(st.integers(0, 8)), draw(st.integers(0, 16))),
            "gap_us": draw(st.sampled_from([0.0, 1.0])),
            "head_us": draw(_us),
            "bytes": draw(_bytes),
            "cube_us": draw(_us),
            "cap": draw(st.sampled_from([0.0, 1.0, 20.0])),
            "after": draw(st.lists(st.sampled_from(usable), max_size=2)) if usable else [],
            "before": draw(st.lists(st.integers(0, at), max_size=1)),
            "reads": draw(st.lists(st.integers(0, 8), max_size=2, unique=True)),
            "ahead": draw(st.booleans()),
        }
        items.append(item)
    return items


@st.composite
def layered(draw: st.DrawFn) -> StepGraph:
    """A layer of random ops, twelve times; weights may be fetched one layer ahead."""
    dies = draw(st.integers(1, 2))
    builder = Builder(draw(hardwares()), dies)
    items = draw(_template(dies))
    places: list[list[int]] = []
    marks = []
    builder.add("embed", cube_us=draw(_us))
    for layer in range(LAYERS):
        here: list[int] = []
        for at, item in enumerate(items):
            deps = [here[i] for i in item["after"]]
            if layer:
                others = [i for i in item["before"] if i < len(items)]
                deps += [places[-1][i] for i in others if items[i]["kind"] != "prefetch"]
            here.append(_add(builder, item, layer, at, tuple(deps)))
        ends = tuple(i for i, item in zip(here, items, strict=True) if item["kind"] != "prefetch")
        marks.append(builder.add(f"layer.{layer}.add", deps=ends, cube_us=1.0))
        places.append(here)
    builder.add("tail", cores=(8, 16), cube_us=draw(_us))
    return replace(builder.graph(), period_marks=tuple(marks))


def _add(builder: Builder, item: dict[str, Any], layer: int, at: int, deps: tuple[int, ...]) -> int:
    name, die = f"layer.{layer}.{at}", item["die"]
    if item["kind"] == "prefetch":
        weight = f"layer.{layer + item['ahead']}.w{at}"
        return builder.prefetch(weight, item["bytes"], die=die, deps=deps)
    if item["kind"] == "transfer":
        return builder.add(
            name, die=die, stream="link", deps=deps, peer=builder.dies - 1 - die,
            head_us=item["head_us"], link_bytes=item["bytes"], sdma_bytes=item["bytes"],
        )  # fmt: skip
    if item["kind"] == "collective":
        members = [
            builder.add(
                f"{name}.{member}", die=member, stream=item["stream"], deps=deps,
                rendezvous=name, head_us=item["head_us"] * (1 + member), latency_us=item["cube_us"],
            )
            for member in range(builder.dies)
        ]  # fmt: skip
        return members[-1]
    reads = tuple(WeightRead(f"layer.{layer}.w{n}", item["bytes"]) for n in item["reads"])
    return builder.add(
        name, die=die, stream=item["stream"], cores=item["cores"], deps=deps,
        gap_us=item["gap_us"], head_us=item["head_us"], cube_us=item["cube_us"],
        hbm_bytes=item["bytes"], hbm_cap_gbps=item["cap"], weights=reads,
    )  # fmt: skip


@given(layered(), st.sampled_from(OPTIONS))
@settings(max_examples=200)
def test_random_layers(graph: StepGraph, options: EngineOptions) -> None:
    skipped(graph, options)


@pytest.mark.nightly
@given(layered(), st.sampled_from(OPTIONS))
@settings(max_examples=2000)
def test_random_layers_at_night(graph: StepGraph, options: EngineOptions) -> None:
    skipped(graph, options)


@pytest.mark.parametrize("name", ["recipe_colocated", "recipe_afd"])
def test_times_by_kind_follow_from_what_was_simulated(name: str) -> None:
    """Die 0's main stream: simulated ops once, the repeated layer for all that were skipped."""
    graph = graph_of(load_schedule(name))
    main = [op for op in graph.ops if op.die == 0 and op.stream == "main"]
    step = Step(flatten(graph))
    step.run()
    whole: dict[str, float] = {}
    for op in main:
        record = step.records[op.index]
        whole[op.kind] = whole.get(op.kind, 0.0) + record.end_us - record.start_us
    step.records.end_us[:] = np.nan
    step.run(steady=True)
    skipped = step.skipped
    assert skipped.layers > 20
    some: dict[str, float] = {}
    for op in main:
        if op.index in skipped.missing:
            continue
        record = step.records[op.index]
        times = 1 + skipped.layers if op.index in skipped.repeated else 1
        some[op.kind] = some.get(op.kind, 0.0) + times * (record.end_us - record.start_us)
    assert some == pytest.approx(whole, rel=1e-9)
