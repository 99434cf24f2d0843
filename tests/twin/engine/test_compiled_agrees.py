"""The compiled engine gives what the reference engine gives, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from engine_graphs import Builder, graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_models.errors import DeadlockError, InputError
from hardware_models.hardware import load_hardware
from twin.engine import reference
from twin.engine.compiled import simulate
from twin.engine.options import EngineOptions
from twin.graph.build import build_step_graph
from twin.graph.step_graph import StepGraph
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule, shipped_schedules
from twin.search.changes import with_ratio

OPTIONS = [
    EngineOptions(contention=contention, unfinished_prefetch=mode)
    for contention in (True, False)
    for mode in ("continues", "stops")
]
every_option = pytest.mark.parametrize("options", OPTIONS, ids=repr)


def assert_same(graph: StepGraph, options: EngineOptions) -> None:
    expected = reference.simulate(graph, options)
    found = simulate(graph, options)
    for op, one, other in zip(graph.ops, expected.records, found.records, strict=True):
        assert one == other, op.name
    assert found.makespan_us == expected.makespan_us


@cache
def shipped(name: str) -> Schedule:
    return load_schedule(name)


def graph_of(schedule: Schedule, layers: int | None = None) -> StepGraph:
    hardware = load_hardware(schedule.deployment.hardware)
    return build_step_graph(schedule, load_model(schedule.model), hardware, layers=layers)


@every_option
@pytest.mark.parametrize("name", shipped_schedules())
def test_shipped_schedules(name: str, options: EngineOptions) -> None:
    assert_same(graph_of(shipped(name)), options)


@every_option
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("ratio", [1, 3, 7])
def test_afd_ratios_and_micro_batches(
    ratio: int, micro_batches: int, options: EngineOptions
) -> None:
    schedule = with_ratio(shipped("recipe_afd"), ratio)
    deployment = schedule.deployment
    assert deployment.afd is not None
    afd = replace(deployment.afd, micro_batches=micro_batches)
    schedule = replace(schedule, deployment=replace(deployment, afd=afd))
    assert_same(graph_of(schedule, layers=5), options)


@pytest.mark.parametrize("graph_mode", ["eager", "npugraph_ex"])
def test_other_graph_modes(graph_mode: str) -> None:
    schedule = shipped("recipe_colocated")
    deployment = replace(schedule.deployment, graph_mode=graph_mode)
    assert_same(graph_of(replace(schedule, deployment=deployment), layers=6), EngineOptions())


@given(graphs(), st.sampled_from(OPTIONS))
@settings(max_examples=400)
def test_random_graphs(graph: StepGraph, options: EngineOptions) -> None:
    assert_same(graph, options)


@pytest.mark.nightly
@given(graphs(), st.sampled_from(OPTIONS))
@settings(max_examples=5000)
def test_random_graphs_at_night(graph: StepGraph, options: EngineOptions) -> None:
    assert_same(graph, options)


def same_error(graph: StepGraph) -> str:
    with pytest.raises((InputError, DeadlockError)) as expected:
        reference.simulate(graph)
    with pytest.raises(type(expected.value)) as found:
        simulate(graph)
    assert str(found.value) == str(expected.value)
    return str(found.value)


def test_impossible_amounts_are_refused() -> None:
    build = Builder()
    build.add("bad", cube_us=float("nan"))
    assert "bad.demand.cube_us" in same_error(build.graph())


def test_cycle_of_deps() -> None:
    build = Builder()
    build.add("fine", stream="x", cube_us=1.0)
    build.add("a", stream="y", deps=(2,), cube_us=1.0)
    build.add("b", stream="z", deps=(1,), cube_us=1.0)
    assert "a (die 0, y) waits for the end of b (die 0, z)" in same_error(build.graph())


def test_op_that_waits_for_a_later_one_of_its_stream() -> None:
    build = Builder()
    build.add("a", deps=(1,), cube_us=1.0)
    build.add("b", cube_us=1.0)
    assert "a (die 0, main)" in same_error(build.graph())


def test_collectives_in_opposite_order() -> None:
    build = Builder(dies=2)
    for die, order in ((0, "ab"), (1, "ba")):
        for key in order:
            build.add(f"{key}{die}", die=die, rendezvous=key, latency_us=1.0)
    assert "rendezvous" in same_error(build.graph())


def test_collectives_that_wait_for_each_others_cores() -> None:
    build = Builder(dies=2)
    for die, order in ((0, "ab"), (1, "ba")):
        for at, key in enumerate(order):
            build.add(
                f"{key}{die}", die=die, stream=key, cores=(0, 16), rendezvous=key,
                latency_us=1.0, gap_us=float(at),
            )  # fmt: skip
    build.add("behind", stream="x", cores=(0, 1), gap_us=2.0, cube_us=1.0)
    message = same_error(build.graph())
    assert "aiv cores held by" in message
    assert "behind" in message


def test_dies_and_ops_in_any_number() -> None:
    """A graph without ops, and one whose dies have odd numbers and no streams in common."""
    assert simulate(Builder().graph()).records == ()
    build = Builder(dies=5)
    build.add("a", die=4, stream="z", link_bytes=1000.0, peer=1)
    build.add("b", die=1, stream="y", hbm_bytes=1000.0, deps=(0,))
    assert_same(build.graph(), EngineOptions())
