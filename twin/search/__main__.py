"""``python -m twin.search``: search a stated space of schedules in simulation."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hardware_models.errors import InfeasibleError, InputError
from twin.cli import run
from twin.engine.observer import Counters
from twin.engine.reference import simulate
from twin.entry import entry_of
from twin.evaluate import Evaluation
from twin.models import load_model
from twin.report.html import write_search_report
from twin.report.table import console, entries_table, knobs_text, latency_of
from twin.report.trace import write_trace
from twin.results import write_result, write_text, write_timing
from twin.schedule import Schedule
from twin.schedule_io import dump_schedule
from twin.search.answer import Answer, answer, nearest_rejection
from twin.search.base import base_schedule, check_fixed
from twin.search.baselines import baseline_schedules, prefill_baselines
from twin.search.config import Kind, SearchConfig
from twin.search.confirm import Confirmation, confirm
from twin.search.feasible import rejection
from twin.search.pool import available_cpus
from twin.search.space import Space, with_dies
from twin.search.sweep import Point, sweep

Entry = dict[str, object]


def main(config: SearchConfig, folder: Path) -> None:
    """Sweep, confirm, write and print."""
    config.check()
    began = time.perf_counter()
    base = base_schedule(config, config.scenario)
    model = load_model(config.model)
    hardware = config.hardware.load(base.deployment.hardware)
    check_fixed(base, model, hardware)
    space = Space(base, model, hardware, config.search.knobs, config.deployment.dies or ())
    space.check()
    workers = config.workers or available_cpus()
    out = console()
    out.print(
        f"{config.scenario}: {space.size} candidates of {model.name} on {hardware.name}: "
        + knobs_text(space.levels)
    )
    points = sweep(space, workers, folder)
    swept_s = time.perf_counter() - began
    found = answer(space, points, config.tie_tolerance)
    counts = _counts(space, found)
    if not found.feasible:
        write_result(folder, "twin.search", config.seed, counts)
        raise InfeasibleError(_why_nothing(found, points))
    payload, best = _confirmed(config, space, found, folder, workers)
    payload = {**counts, **payload}
    write_result(folder, "twin.search", config.seed, payload)
    wall_s = time.perf_counter() - began
    write_timing(folder, wall_s, {"evaluations_per_s": found.feasible / swept_s})
    _write_best(folder, best)
    tried = [(space.choice(p.index), p.latency_us) for p in points if p.latency_us is not None]
    write_search_report(folder / "report.html", payload, best, tried)
    _print(payload, found, folder, wall_s)


def _counts(space: Space, found: Answer) -> dict[str, object]:
    return {
        "space": {name: list(levels) for name, levels in space.levels.items()},
        "candidates": space.size,
        "feasible": found.feasible,
        "evaluated": found.feasible,
        "pruned": 0,
        "proven_optimal": found.feasible > 0,
        "gap": 0.0,
        "infeasible": found.infeasible,
    }


def _why_nothing(found: Answer, points: Sequence[Point]) -> str:
    reason, count = next(iter(found.infeasible.items()))
    nearest = nearest_rejection(points)
    return (
        f"nothing feasible among {len(points)} candidates; {count} fail on {reason}; "
        f"the nearest misses by: {nearest.detail if nearest else reason}"
    )


def _confirmed(
    config: SearchConfig, space: Space, found: Answer, folder: Path, workers: int
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


def _print(payload: dict[str, object], found: Answer, folder: Path, wall_s: float) -> None:
    out = console()
    ties, baselines = payload["tie_set"], payload["baselines"]
    assert isinstance(ties, list)
    assert isinstance(baselines, list)
    title = (
        f"{payload['evaluated']} of {payload['candidates']} candidates feasible and simulated; "
        "optimal means optimal in the model"
    )
    out.print(entries_table(title, [*ties, *(b for b in baselines if "infeasible" not in b)]))
    for reason, count in found.infeasible.items():
        out.print(f"infeasible: {count} x {reason}")
    for baseline in baselines:
        if "infeasible" in baseline:
            out.print(f"baseline {baseline['name']}: {baseline['infeasible']}")
    best = payload["best"]
    assert isinstance(best, dict)
    latency, best_ms = latency_of(best)
    for baseline in baselines:
        if "infeasible" not in baseline and latency_of(baseline)[1] < best_ms:
            gain = 1 - latency_of(baseline)[1] / best_ms
            out.print(f"outside this space, baseline {baseline['name']} is {gain:.1%} faster")
    tolerance = payload["tie_tolerance"]
    out.print(f"{len(found.ties)} schedule(s) tie within {tolerance:.1%} of the best {latency}:")
    out.print(f"  {knobs_text(found.tie_ranges)}")
    out.print(f"{wall_s:.0f} s; schedule.yaml, result.json, trace.json, report.html in {folder}")


if __name__ == "__main__":
    sys.exit(run("search", SearchConfig, main))
