"""``python -m twin.search``: search a stated space of schedules in simulation."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hardware_models.errors import InfeasibleError, InputError
from twin.cli import run
from twin.engine.observer import Counters
from twin.engine.reference import simulate
from twin.entry import entry_of
from twin.evaluate import Evaluation
from twin.report.html import write_search_report
from twin.report.table import console, entries_table, knobs_text, latency_of
from twin.report.trace import write_trace
from twin.results import write_result, write_text, write_timing
from twin.schedule import Schedule
from twin.schedule_io import dump_schedule
from twin.search.answer import Answer, answer
from twin.search.base import base_schedule, searched_space
from twin.search.baselines import baseline_schedules, prefill_baselines
from twin.search.changes import with_dies
from twin.search.config import Kind, SearchConfig
from twin.search.confirm import Confirmation, confirm
from twin.search.feasible import rejection
from twin.search.pool import Workers, available_cpus
from twin.search.space import Space
from twin.search.sweep import Explorer, Sweep, sweep

Entry = dict[str, object]
PACKAGES = ("numba",)


def main(config: SearchConfig, folder: Path) -> None:
    """Sweep, confirm, write and print."""
    began = time.perf_counter()
    space = searched_space(config)
    count = config.workers or available_cpus()
    out = console()
    out.print(
        f"{config.scenario}: {space.size} candidates of {space.model.name} "
        f"on {space.hardware.name}: {knobs_text(space.levels)}"
    )
    with Workers(count) as workers:
        swept = sweep(Explorer(space, config.tie_tolerance), workers, folder, config.budget)
        swept_s = time.perf_counter() - began
        found = answer(space, swept.points, config.tie_tolerance)
        counts = _counts(space, swept, found)
        if not found.ties:
            write_result(folder, "twin.search", config.seed, counts, PACKAGES)
            raise InfeasibleError(_why_nothing(space, swept))
        payload, best = _confirmed(config, space, found, folder, workers)
    payload = {**counts, **payload}
    write_result(folder, "twin.search", config.seed, payload, PACKAGES)
    wall_s = time.perf_counter() - began
    write_timing(folder, wall_s, {"evaluations_per_s": swept.simulated / swept_s})
    _write_best(folder, best)
    tried = {point.index: point.latency_us for point in [*swept.points, *swept.best_by_level]}
    shown = [(space.choice(index), us) for index, us in sorted(tried.items())]
    write_search_report(folder / "report.html", payload, best, shown)
    _print(payload, found, folder, wall_s, swept_s)


def _counts(space: Space, swept: Sweep, found: Answer) -> dict[str, object]:
    best_us = min((point.latency_us for point in swept.points), default=math.inf)
    gap = max(0.0, 1 - swept.open_bound_us / best_us) if swept.open and found.ties else 0.0
    return {
        "space": {name: list(levels) for name, levels in space.levels.items()},
        "candidates": space.size,
        "feasible": swept.feasible,
        "evaluated": swept.simulated,
        "pruned": swept.pruned,
        "open": swept.open,
        "proven_optimal": bool(found.ties) and gap == 0.0,
        "gap": gap,
        "infeasible": dict(sorted(swept.infeasible.items(), key=lambda item: (-item[1], item[0]))),
    }


def _why_nothing(space: Space, swept: Sweep) -> str:
    reason, count = min(swept.infeasible.items(), key=lambda item: (-item[1], item[0]))
    return (
        f"nothing feasible among {space.size} candidates; {count} fail on {reason}; "
        f"the nearest misses by: {swept.nearest.detail if swept.nearest else reason}"
    )


def _confirmed(
    config: SearchConfig, space: Space, found: Answer, folder: Path, workers: Workers
) -> tuple[dict[str, object], Evaluation]:
    """The answer's entries, their schedules written, and the evaluation of the best."""
    listed = list(dict.fromkeys([*found.ties[: config.top], *found.pareto[: config.top]]))
    baselines = _baselines(config, space)
    runnable = {name: item for name, item in baselines.items() if isinstance(item, Schedule)}
    schedules = [*(space.schedule(index) for index in listed), *runnable.values()]
    confirmation = Confirmation(space.model, space.hardware, config.draws, config.seed)
    results = confirm(confirmation, schedules, workers)
    entries: dict[int, Entry] = {}
    for place, (index, result) in enumerate(zip(listed, results, strict=False)):
        name = "best" if place == 0 else f"candidate {index}"
        path = "schedule.yaml" if place == 0 else f"schedules/candidate-{index}.yaml"
        write_text(folder / path, dump_schedule(result.schedule))
        entries[index] = {**entry_of(name, result, path), "knobs": space.choice(index)}
    stand_in: list[Entry] = []
    confirmed = iter(results[len(listed) :])
    for name, item in baselines.items():
        if isinstance(item, str):
            stand_in.append({"name": name, "infeasible": item})
            continue
        path = f"schedules/baseline-{len(stand_in)}.yaml"
        write_text(folder / path, dump_schedule(item))
        stand_in.append(entry_of(name, next(confirmed), path))
    payload: dict[str, object] = {
        "best": entries[listed[0]],
        "tie_tolerance": config.tie_tolerance,
        "tie_count": len(found.ties),
        "tie_ranges": found.tie_ranges,
        "tie_set": [entries[index] for index in found.ties[: config.top]],
        "pareto": [entries[index] for index in found.pareto[: config.top]],
        "baselines": stand_in,
    }
    return payload, results[0]


def _baselines(config: SearchConfig, space: Space) -> dict[str, Schedule | str]:
    """Baselines with the scenario's workload and dies; a text says why one is missing."""
    total = space.dies[0] if space.dies else space.base.deployment.total_dies

    def counterpart(kind: Kind) -> Schedule | str:
        if kind == config.scenario:
            return space.base
        try:
            recipe = replace(base_schedule(config, kind), workload=space.base.workload)
            return with_dies(recipe, total)
        except InputError as error:
            return str(error)

    made: Mapping[str, Schedule | str]
    if config.scenario == "prefill":
        made = prefill_baselines(with_dies(space.base, total))
    else:
        made = baseline_schedules(
            space.base, counterpart("colocated"), counterpart("afd"), space.hardware
        )
    return {name: _or_reason(item, space) for name, item in made.items()}


def _or_reason(item: Schedule | str, space: Space) -> Schedule | str:
    if isinstance(item, str):
        return item
    reason = rejection(item, space.model, space.hardware)
    return item if reason is None else reason.detail


def _write_best(folder: Path, best: Evaluation) -> None:
    assert best.graph is not None
    counters = Counters()
    timeline = simulate(best.graph, observer=counters)
    write_trace(folder / "trace.json", best.graph, timeline, counters)


def _print(
    payload: Mapping[str, Any], found: Answer, folder: Path, wall_s: float, swept_s: float
) -> None:
    out = console()
    ties, baselines = payload["tie_set"], payload["baselines"]
    out.print(_proof(payload, swept_s))
    title = f"{payload['feasible']} of {payload['candidates']} candidates feasible"
    out.print(entries_table(title, [*ties, *(b for b in baselines if "infeasible" not in b)]))
    for reason, count in payload["infeasible"].items():
        out.print(f"infeasible: {count} x {reason}")
    for baseline in baselines:
        if "infeasible" in baseline:
            out.print(f"baseline {baseline['name']}: {baseline['infeasible']}")
    best = payload["best"]
    latency, best_ms = latency_of(best)
    for baseline in baselines:
        if "infeasible" not in baseline and latency_of(baseline)[1] < best_ms:
            gain = 1 - latency_of(baseline)[1] / best_ms
            out.print(f"outside this space, baseline {baseline['name']} is {gain:.1%} faster")
    tolerance = payload["tie_tolerance"]
    out.print(f"{len(found.ties)} schedule(s) tie within {tolerance:.1%} of the best {latency}:")
    out.print(f"  {knobs_text(found.tie_ranges)}")
    out.print(f"{wall_s:.0f} s; schedule.yaml, result.json, trace.json, report.html in {folder}")


def _proof(payload: Mapping[str, Any], swept_s: float) -> str:
    simulated, feasible = payload["evaluated"], payload["feasible"]
    factor = feasible / max(simulated, 1)
    text = (
        f"{simulated} simulated, {payload['pruned']} pruned by a lower bound "
        f"(factor {factor:.1f}), {feasible / swept_s:.0f} candidates/s: "
    )
    if payload["proven_optimal"]:
        return text + "the best is proven optimal (in the model, over this space)"
    return text + (
        f"{payload['open']} left open by budget: the best is within {payload['gap']:.1%} of optimal"
    )


if __name__ == "__main__":
    sys.exit(run("search", SearchConfig, main))
