"""Graph modes: what the host costs, and where a step is bound by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_models.hardware import load_hardware
from hardware_models.ops import Collective
from twin.deployment import GraphMode
from twin.engine import reference
from twin.engine.compiled import simulate
from twin.evaluate import evaluate, latencies
from twin.graph.build import build_step_graph
from twin.graph.step_graph import StepGraph
from twin.models import load_model
from twin.schedule import CoreLimit, Schedule, Stage
from twin.schedule_io import load_schedule
from twin.validate import validate_schedule

HARDWARE = load_hardware("a3-752t")
HOST = ("launch_host_eager_us", "launch_host_event_us", "launch_host_hccl_us")
MODES: tuple[GraphMode, ...] = ("eager", "npugraph_ex", "ge_graph")


def plain(name: str, mode: GraphMode) -> Schedule:
    """A shipped schedule as every graph mode can have it: no scopes, prefetches or limits."""
    schedule = load_schedule(name)
    stages: tuple[Stage, ...] = schedule.stages
    if not schedule.deployment.is_afd:
        stages = (Stage(name="serial", streams={"main": CoreLimit()}),)
    deployment = replace(schedule.deployment, graph_mode=mode)
    plain = replace(schedule, deployment=deployment, stages=stages, super_kernel=(), prefetch=())
    validate_schedule(plain, load_model(plain.model), HARDWARE)
    return plain


def graph_of(name: str, mode: GraphMode, **hardware: float) -> StepGraph:
    schedule = plain(name, mode)
    die = HARDWARE.with_values(hardware)
    return build_step_graph(schedule, load_model(schedule.model), die, layers=3)


@pytest.mark.parametrize("name", ["tiny_colocated", "recipe_colocated", "recipe_afd"])
@pytest.mark.parametrize("mode", MODES)
def test_engines_agree_in_every_mode(name: str, mode: GraphMode) -> None:
    graph = graph_of(name, mode)
    assert simulate(graph).records == reference.simulate(graph).records


@pytest.mark.parametrize("name", ["tiny_colocated", "recipe_colocated", "recipe_afd"])
def test_eager_is_slowest_and_one_graph_is_fastest(name: str) -> None:
    eager, captured, compiled = (simulate(graph_of(name, mode)).makespan_us for mode in MODES)
    assert eager > captured > compiled


def test_a_step_of_small_ops_takes_what_the_host_takes() -> None:
    """The die waits for nearly every launch, so only the last op's own time comes on top."""
    graph = graph_of("tiny_colocated", "eager")
    timeline = simulate(graph)
    host_us = graph.ops[-1].release_us
    assert host_us >= len(graph.ops) * HARDWARE["launch_host_eager_us"]
    assert host_us < timeline.makespan_us < 1.1 * host_us


def test_a_host_that_costs_nothing_leaves_a_captured_graph() -> None:
    free = dict.fromkeys(HOST, 0.0)
    eager = simulate(graph_of("recipe_colocated", "eager", **free))
    assert eager.records == simulate(graph_of("recipe_colocated", "npugraph_ex")).records


@pytest.mark.parametrize("name", ["recipe_colocated", "recipe_afd"])
def test_the_host_of_a_die_issues_the_ops_of_all_its_streams_in_turn(name: str) -> None:
    graph = graph_of(name, "eager")
    launch_us, event_us, hccl_us = (HARDWARE[parameter] for parameter in HOST)
    hosts = {die.index: 0.0 for die in graph.dies}
    for op in graph.ops:
        waits = {
            graph.ops[dep].stream
            for dep in op.deps
            if graph.ops[dep].die == op.die and graph.ops[dep].stream != op.stream
        }
        slow = isinstance(op.spec, Collective) or op.kind in ("send", "receive")
        hosts[op.die] += (hccl_us if slow else launch_us) + len(waits) * event_us
        assert op.release_us == pytest.approx(hosts[op.die])
    if name == "recipe_afd":
        join = next(op for op in graph.ops if op.name == "layer.1.add")
        before = graph.ops[join.index - 1].release_us
        assert join.release_us - before == pytest.approx(launch_us + event_us)


def test_no_op_of_an_eager_step_starts_before_its_launch() -> None:
    graph = graph_of("recipe_afd", "eager")
    for op, record in zip(graph.ops, simulate(graph).records, strict=True):
        assert record.start_us >= op.release_us - 1e-9


@pytest.mark.parametrize("name", ["recipe_colocated", "recipe_afd"])
def test_a_few_layers_tell_what_all_take_in_eager(name: str) -> None:
    schedule = plain(name, "eager")
    model = load_model(schedule.model)
    (few,) = latencies(schedule, model, [HARDWARE])
    assert few == pytest.approx(evaluate(schedule, model, HARDWARE).latency_us, rel=1e-9)


@pytest.mark.parametrize("mode", ["ge_graph", "npugraph_ex"])
def test_graphs_need_no_host(mode: GraphMode) -> None:
    assert all(op.release_us == 0.0 for op in graph_of("recipe_afd", mode).ops)
