"""A lower bound on a set of schedules stays below every one of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engine_graphs import ALONE, KB, Builder, graphs, us
from hypothesis import given
from hypothesis import strategies as st
from test_compiled_plan import with_share

from hardware_models.demand import WeightRead
from hardware_models.hardware import load_hardware
from twin.engine.compiled import flatten, simulate
from twin.engine.compiled.bound import ALWAYS, Option, StepBound
from twin.engine.compiled.plan import Grid, Plan
from twin.engine.fluid import GRID_PER_US
from twin.engine.options import EngineOptions
from twin.graph.step_graph import StepGraph
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import with_core_split, with_ratio

MANY = 60


@given(graphs(), st.booleans())
def test_bound_of_one_schedule_is_not_above_its_step(graph: StepGraph, contention: bool) -> None:
    flat = flatten(graph)
    rows = [Option(klass, int(row), ALWAYS, 0) for klass, row in enumerate(flat.row_of)]
    bound = StepBound(flat, rows, contention=contention)
    for unfinished in ("continues", "stops"):
        options = EngineOptions(contention=contention, unfinished_prefetch=unfinished)
        assert bound.us(()) <= simulate(graph, options).makespan_us


def _bound_us(graph: StepGraph) -> float:
    flat = flatten(graph)
    rows = [Option(klass, int(row), ALWAYS, 0) for klass, row in enumerate(flat.row_of)]
    return StepBound(flat, rows, contention=False).us(())


def test_what_several_prefetches_bring_counts_together() -> None:
    """Both halves are in L2 when the reader starts: 2 us of L2, where one half would leave HBM."""
    build = Builder()
    for _ in range(2):
        build.prefetch("w", 40 * KB)
    build.add("work", cube_us=20.0)
    build.add("read", weights=(WeightRead("w", 80 * KB),), hbm_cap_gbps=10.0, l2_cap_gbps=40.0)
    step_us = simulate(build.graph(), ALONE).makespan_us
    assert step_us == us(22.0)
    assert _bound_us(build.graph()) == pytest.approx(22.0, rel=2e-9)


def test_no_reader_finds_more_than_l2_holds() -> None:
    build = Builder()
    build.prefetch("w", 200 * KB)
    build.add("work", cube_us=100.0)
    build.add("read", weights=(WeightRead("w", 200 * KB),), hbm_cap_gbps=10.0)
    # 100 KB of L2 hold half of it; the other half comes at 10 GB/s.
    assert simulate(build.graph(), ALONE).makespan_us == us(110.0)
    assert _bound_us(build.graph()) == pytest.approx(110.0, rel=2e-9)


def test_ops_as_short_as_the_grid_of_times_are_rounded_below_the_bound() -> None:
    build = Builder()
    for i in range(20):
        build.add(f"short.{i}", cube_us=1.4 / GRID_PER_US)
    graph = build.graph()
    makespan_us = simulate(graph, ALONE).makespan_us
    assert makespan_us < 20 * 1.4 / GRID_PER_US
    assert _bound_us(graph) <= makespan_us


def _grid(base: Schedule) -> tuple[Grid, list[int]]:
    model, hardware = load_model(base.model), load_hardware(base.deployment.hardware)
    weights = sorted({p.weight for p in base.prefetch})
    half = len(weights) // 2
    knobs = {
        "first": [with_share(base, weights[:half], share) for share in (0.0, 0.4, 1.0)],
        "rest": [with_share(base, weights[half:], share) for share in (0.0, 0.7, 1.0)],
    }
    if not base.deployment.is_afd:
        name = base.stages[-1].name
        knobs["cores"] = [with_core_split(base, name, aic, hardware) for aic in (8, 16, 20)]
    return Plan(base, model, hardware).grid(knobs), [len(levels) for levels in knobs.values()]


@pytest.mark.parametrize("contention", [True, False])
@pytest.mark.parametrize("name", ["recipe_colocated", "recipe_afd"])
def test_bound_of_a_set_is_not_above_its_best(name: str, contention: bool) -> None:
    base = load_schedule(name)
    grid, sizes = _grid(with_ratio(base, 3) if name == "recipe_afd" else base)
    options = EngineOptions(contention=contention)
    bound = grid.bound(options)
    levels = np.array(list(itertools.product(*map(range, sizes))))
    step_us = grid.evaluate(levels, options).step_us
    rng = np.random.default_rng(5)
    for _ in range(MANY):
        allowed = [sorted(set(rng.integers(0, size, 2).tolist())) for size in sizes]
        inside = [all(v in a for v, a in zip(line, allowed, strict=True)) for line in levels]
        assert bound.us(allowed) <= step_us[inside].min()
    everything = bound.us([range(size) for size in sizes])
    assert 0.7 * step_us.min() < everything <= step_us.min()


def test_fewer_levels_never_lower_the_bound() -> None:
    grid, sizes = _grid(load_schedule("recipe_colocated"))
    bound = grid.bound()
    whole = [list(range(size)) for size in sizes]
    for axis, size in enumerate(sizes):
        alone = [bound.us([*whole[:axis], [level], *whole[axis + 1 :]]) for level in range(size)]
        assert min(alone) == pytest.approx(bound.us(whole), rel=1e-9) or min(alone) > bound.us(
            whole
        )
        assert len(set(alone)) > 1
