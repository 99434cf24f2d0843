"""``python -m twin.search``: search a stated space of schedules in simulation."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from hardware_models.errors import InfeasibleError
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
from twin.sealed import SEALED, check_seal, write_sealed
from twin.search.answer import Answer, answer
from twin.search.base import searched_space
from twin.search.beside import Baseline, baselines_of
from twin.search.config import SearchConfig
from twin.search.confirm import Confirmation, confirm
from twin.search.contention import check_contention
from twin.search.executor import workers_of
from twin.search.explain import explain
from twin.search.explorer import Explorer
from twin.search.findings import (
    Naming,
    contention_keys,
    explain_keys,
    latency_keys,
    robustness_keys,
)
from twin.search.nearest import Change, nearest_changes
from twin.search.pool import Workers, prepare
from twin.search.robust import RANKED_TIES, Ranked, rank_ties
from twin.search.run_folder import SCHEDULES, remove_others
from twin.search.shards import write_points
from twin.search.space import Space
from twin.search.sweep import Sweep, sweep
from twin.search.words import answer_lines, explain_lines, outside_lines, tie_lines
from twin.serving import host_gap, padded_sequences
from twin.uncertainty import draw_hardware

Entry = dict[str, object]
PACKAGES = ("numba",)
SEALED_RECOMMENDED = "sealed-recommended.json"


def main(config: SearchConfig, folder: Path) -> None:
    """Sweep, confirm, write and print."""
    began = time.perf_counter()
    if config.search.executor == "processes":
        prepare(config.workers)
    space = searched_space(config)
    # A die that lacks what the answer needs is refused before the search.
    host_gap(space.base, space.hardware)
    padded_sequences(space.base, space.model, space.hardware)
    if config.seal:
        check_seal(folder, config.draws, (SEALED, SEALED_RECOMMENDED))
    out = console()
    out.print(
        f"{config.scenario}: {space.size} candidates of {space.model.name} "
        f"on {space.hardware.name}: {knobs_text(space.levels)}"
    )
    with workers_of(config.search.executor, config.workers) as workers:
        swept = sweep(Explorer(space, config.tie_tolerance), workers, folder, config.budget)
        swept_s = time.perf_counter() - began
        if swept.taken:
            out.print(f"{swept.taken} of its shards were in {folder} already: not explored again")
        found = answer(space, swept.points, config.tie_tolerance)
        counts = _counts(space, swept, found)
        if not found.ties:
            changes = nearest_changes(space)
            counts["nearest_changes"] = [asdict(change) for change in changes]
            write_result(folder, "twin.search", config.seed, counts, PACKAGES)
            remove_others(folder, [])
            raise InfeasibleError(_why_nothing(space, swept, changes))
        ranked = _ranked(config, space, found, workers)
        ties = found.ties[: config.top] if ranked is None else [each.index for each in ranked]
        payload, best, recommended = _confirmed(config, space, found, ties, folder, workers)
        payload |= _findings(config, space, found, ties, swept, best, folder, workers)
        payload["robustness"] = _robustness(space, found, ranked)
    payload = {**counts, **payload}
    write_result(folder, "twin.search", config.seed, payload, PACKAGES)
    remove_others(folder, _listed(payload))
    wall_s = time.perf_counter() - began
    write_timing(folder, wall_s, {"evaluations_per_s": swept.simulated / swept_s})
    _write_best(folder, best)
    tried = {point.index: point for point in [*swept.points, *swept.best_by_level]}
    points = [tried[index] for index in sorted(tried)]
    shown = [(space.choice(point.index), point.latency_us) for point in points]
    write_points(folder, [astuple(point) for point in points], [choice for choice, _ in shown])
    sections = [
        ("Answer", [*answer_lines(payload), *tie_lines(payload)]),
        ("Why", list(explain_lines(payload))),
    ]
    write_search_report(folder / "report.html", payload, best, shown, sections)
    _print(payload, found, folder, wall_s, swept_s)
    if config.seal:
        _seal(config, space, best, recommended, folder)


def _listed(payload: Mapping[str, Any]) -> list[str]:
    """The schedule files that the result names, in the run folder."""
    entries = [payload["best"], *payload["tie_set"], *payload["pareto"], *payload["baselines"]]
    return [entry["schedule"] for entry in entries if "schedule" in entry]


def _seal(
    config: SearchConfig, space: Space, best: Evaluation, recommended: Evaluation, folder: Path
) -> None:
    """Seal the best and, where it is another schedule, the recommended one."""
    made_by = {
        "command": "twin.search",
        "scenario": config.scenario,
        "space": {name: list(levels) for name, levels in space.levels.items()},
        "draws": config.draws,
        "seed": config.seed,
    }
    each = (
        {SEALED: best} if recommended is best else {SEALED: best, SEALED_RECOMMENDED: recommended}
    )
    for name, evaluation in each.items():
        sealed_hash = write_sealed(folder / name, evaluation, space.hardware, made_by)
        console().print(f"sealed in {folder / name}: hash {sealed_hash}")


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


def _why_nothing(space: Space, swept: Sweep, changes: Sequence[Change]) -> str:
    counted = sorted(swept.infeasible.items(), key=lambda item: (-item[1], item[0]))
    every = "; ".join(f"{count} fail on {reason}" for reason, count in counted)
    helps = [change.text for change in changes if change.to is not None]
    return (
        f"nothing feasible among {space.size} candidates; {every}; "
        f"the nearest misses by: {swept.nearest.detail if swept.nearest else counted[0][0]}; "
        f"nearest change of each kind that helps alone: {', '.join(helps) or 'none'}"
    )


def _ranked(
    config: SearchConfig, space: Space, found: Answer, workers: Workers
) -> list[Ranked] | None:
    """The most robust ties, or ``None`` where no draws are asked for."""
    if not config.draws:
        return None
    variants = draw_hardware(space.hardware, config.draws, config.seed)
    return rank_ties(space, found.ties[:RANKED_TIES], variants, config.top, workers)


def _confirmed(
    config: SearchConfig,
    space: Space,
    found: Answer,
    ties: Sequence[int],
    folder: Path,
    workers: Workers,
) -> tuple[dict[str, object], Evaluation, Evaluation]:
    """The answer's entries, their schedules written; evaluations of the best and recommended."""
    best = found.ties[0]
    listed = list(dict.fromkeys([best, *ties, *found.pareto[: config.top]]))
    baselines = baselines_of(config, space)
    runnable = [each.schedule for each in baselines if isinstance(each.schedule, Schedule)]
    schedules = [*(space.schedule(index) for index in listed), *runnable]
    confirmation = Confirmation(space.model, space.hardware, config.draws, config.seed)
    results = confirm(confirmation, schedules, workers)
    entries: dict[int, Entry] = {}
    for index, result in zip(listed, results, strict=False):
        path = "schedule.yaml" if index == best else f"{SCHEDULES}/candidate-{index}.yaml"
        write_text(folder / path, dump_schedule(result.schedule))
        name = Naming(space, best)(index)
        entries[index] = {**entry_of(name, result, path), "knobs": space.choice(index)}
    payload: dict[str, object] = {
        "best": entries[best],
        "best_is_base": space.is_base(best),
        "recommended": entries[ties[0]],
        "tie_tolerance": config.tie_tolerance,
        "tie_count": len(found.ties),
        "tie_ranges": found.tie_ranges,
        "tie_set": [entries[index] for index in ties],
        "pareto": [entries[index] for index in found.pareto[: config.top]],
        "baselines": _baseline_entries(baselines, results[len(listed) :], folder),
    }
    return payload, results[0], results[listed.index(ties[0])]


def _baseline_entries(
    baselines: Sequence[Baseline], confirmed: Sequence[Evaluation], folder: Path
) -> list[Entry]:
    results = iter(confirmed)
    entries: list[Entry] = []
    for baseline in baselines:
        entry: Entry = {"name": baseline.name}
        if isinstance(baseline.schedule, str):
            entry["infeasible"] = baseline.schedule
        else:
            path = f"{SCHEDULES}/baseline-{len(entries)}.yaml"
            write_text(folder / path, dump_schedule(baseline.schedule))
            entry = entry_of(baseline.name, next(results), path)
        if baseline.reasoning:
            entry["reasoning"] = baseline.reasoning
        entries.append(entry)
    return entries


def _findings(
    config: SearchConfig,
    space: Space,
    found: Answer,
    ties: Sequence[int],
    swept: Sweep,
    best: Evaluation,
    folder: Path,
    workers: Workers,
) -> dict[str, object]:
    """What the answer says beyond its ranking."""
    winner, tolerance = found.ties[0], config.tie_tolerance
    near = list(dict.fromkeys([winner, *ties]))
    check = check_contention(space, winner, tolerance, workers, folder, config.budget)
    explained = explain(space, best, near, swept.best_by_level, tolerance, workers)
    naming = Naming(space, winner)
    return {
        "contention": contention_keys(check, tolerance),
        "latency": {
            "best": latency_keys(space, winner),
            "recommended": latency_keys(space, ties[0]),
        },
        "explain": explain_keys(explained, naming, space.hardware),
    }


def _robustness(
    space: Space, found: Answer, ranked: Sequence[Ranked] | None
) -> dict[str, object] | None:
    considered = min(len(found.ties), RANKED_TIES)
    naming = Naming(space, found.ties[0])
    return None if ranked is None else robustness_keys(ranked, naming, considered)


def _write_best(folder: Path, best: Evaluation) -> None:
    counters = Counters()
    timeline = simulate(best.graph, observer=counters)
    write_trace(folder / "trace.json", best.graph, timeline, counters)


def _print(
    payload: Mapping[str, Any], found: Answer, folder: Path, wall_s: float, swept_s: float
) -> None:
    out = console()
    baselines = payload["baselines"]
    for line in answer_lines(payload):
        out.print(line)
    out.print(_proof(payload, swept_s))
    title = f"{payload['feasible']} of {payload['candidates']} candidates feasible"
    runnable = [baseline for baseline in baselines if "infeasible" not in baseline]
    out.print(entries_table(title, [*_marked(payload), *runnable]))
    for reason, count in payload["infeasible"].items():
        out.print(f"infeasible: {count} x {reason}")
    for baseline in baselines:
        why = baseline.get("infeasible", baseline.get("reasoning"))
        if why is not None:
            out.print(f"baseline {baseline['name']}: {why}")
    for line in outside_lines(runnable, payload["best"]):
        out.print(line)
    latency, _ = latency_of(payload["best"])
    tolerance = payload["tie_tolerance"]
    out.print(f"{len(found.ties)} schedule(s) tie within {tolerance:.1%} of the best {latency}:")
    out.print(f"  {knobs_text(found.tie_ranges)}")
    for line in (*tie_lines(payload), *explain_lines(payload)):
        out.print(line)
    out.print(f"{wall_s:.0f} s; schedule.yaml, result.json, trace.json, report.html in {folder}")


def _marked(payload: Mapping[str, Any]) -> list[Entry]:
    """The best, then the other ties; the recommended one says so."""
    best, recommended = payload["best"], payload["recommended"]["name"]
    ties = [best, *(tie for tie in payload["tie_set"] if tie["name"] != best["name"])]
    return [
        {**tie, "name": f"{tie['name']}, recommended"} if tie["name"] == recommended else tie
        for tie in ties
    ]


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
