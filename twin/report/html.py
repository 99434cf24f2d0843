"""One offline HTML page a run: everything inline, names escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twin.choices import Level
from twin.evaluate import Evaluation
from twin.report import picture
from twin.report.pages import templates_of
from twin.report.table import (
    clipped_text,
    evidence_text,
    knobs_text,
    latency_of,
    memory_text,
    time_text,
)
from twin.results import write_text

PAGE = templates_of("twin.report")
"""The package's templates."""
PAGE.filters["memory"] = memory_text
PAGE.filters["times"] = time_text
PAGE.filters["evidence"] = evidence_text
PAGE.filters["latency"] = latency_of


def write_simulation_report(path: Path, entry: Mapping[str, Any], result: Evaluation) -> Path:
    """The page of one simulated schedule.

    Raises:
        InputError: the file cannot be written.
    """
    title = f"Simulation of {entry['name']}"
    facts = [clipped_text(result.graph.clipped)] if result.graph.clipped else []
    return _write(path, title, result, tables=[("Schedule", [entry])], facts=facts, plots=[])


def write_search_report(
    path: Path,
    payload: Mapping[str, Any],
    best: Evaluation,
    points: Sequence[tuple[Mapping[str, Level], float]],
    sections: Sequence[tuple[str, Sequence[str]]] = (),
) -> Path:
    """The page of a search: ``points`` are what is drawn: (knob levels, latency in us).

    ``sections`` are titles with sentences below, shown behind the tables.

    Raises:
        InputError: the file cannot be written.
    """
    baselines = [b for b in payload["baselines"] if "infeasible" not in b]
    latency = best.schedule.workload.latency_name
    facts = [
        f"{payload['candidates']} candidates, {payload['feasible']} feasible: "
        f"{payload['evaluated']} simulated, {payload['pruned']} pruned by a lower bound. "
        + (
            "The best is optimal in the model, over this space."
            if payload["proven_optimal"]
            else f"{payload['open']} are open; the best is within {payload['gap']:.1%} of optimal."
        ),
        f"{payload['tie_count']} schedules lie within {payload['tie_tolerance']:.1%} of the best "
        f"{latency}. Knob levels among them: {knobs_text(payload['tie_ranges'])}.",
        *(f"Infeasible: {n} x {reason}." for reason, n in payload["infeasible"].items()),
        *(
            f"Baseline {b['name']}: {b['infeasible']}."
            for b in payload["baselines"]
            if "infeasible" in b
        ),
    ]
    tables = [
        ("Best", [payload["best"]]),
        ("Tie set, most robust first", payload["tie_set"]),
        ("Baselines", baselines),
    ]
    plots = picture.knob_plots(points, latency)
    return _write(
        path, "Search result", best, tables=tables, facts=facts, plots=plots, sections=sections
    )


def _write(
    path: Path,
    title: str,
    result: Evaluation,
    *,
    tables: Sequence[tuple[str, Sequence[Mapping[str, Any]]]],
    facts: Sequence[str],
    plots: Sequence[picture.KnobPlot],
    sections: Sequence[tuple[str, Sequence[str]]] = (),
) -> Path:
    schedule = result.schedule
    workload = schedule.workload
    served = (
        f"prompts of {workload.kv_tokens} tokens"
        if workload.is_prefill
        else f"KV {workload.kv_tokens}, next_n {workload.next_n}, acceptance {workload.acceptance}"
    )
    text = PAGE.get_template("report.html.j2").render(
        title=title,
        latency=workload.latency_name,
        subtitle=(
            f"{schedule.model} on {schedule.deployment.total_dies} dies of "
            f"{schedule.deployment.hardware}, batch {workload.global_batch}, {served}"
        ),
        facts=facts,
        tables=tables,
        sections=sections,
        plots=plots,
        timeline=picture.timeline_picture(result.graph, result.timeline),
        kinds=picture.kind_bars({k: us / 1e3 for k, us in result.time_by_kind.items()}),
        size=picture,
    )
    return write_text(path, text)
