"""Reports: a valid trace, and a page that is offline and escapes names."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware_models.hardware import load_hardware
from twin.engine.observer import Counters
from twin.engine.reference import simulate
from twin.entry import entry_of
from twin.evaluate import Evaluation, evaluate
from twin.models import load_model
from twin.report.html import write_search_report, write_simulation_report
from twin.report.picture import knob_plots, timeline_picture
from twin.report.table import clipped_text, evidence_text
from twin.report.trace import write_trace
from twin.schedule_io import load_schedule

HARDWARE = load_hardware("a3-752t")


@pytest.fixture(scope="module", params=["recipe_colocated", "recipe_afd"])
def result(request: pytest.FixtureRequest) -> Evaluation:
    schedule = load_schedule(request.param)
    return evaluate(schedule, load_model(schedule.model), HARDWARE)


def test_the_trace_has_numeric_times_no_overlaps_and_every_op(
    result: Evaluation, tmp_path: Path
) -> None:
    counters = Counters()
    simulate(result.graph, observer=counters)
    path = write_trace(tmp_path / "trace.json", result.graph, result.timeline, counters)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(result.graph.ops)
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in slices:
        assert isinstance(event["ts"], float | int)
        assert event["dur"] >= 0
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 1e-6
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {d.index: f"die {d.index} {d.role}" for d in result.graph.dies}
    named = {(e["pid"], e.get("tid")) for e in events if e["name"] == "thread_name"}
    assert named == set(rows)
    counted = {e["name"] for e in events if e["ph"] == "C"}
    assert counted >= {"aic", "aiv", "hbm_gbps", "l2_gbps", "sdma_gbps"}
    for event in events:
        if event["ph"] == "C" and event["name"] == "hbm_gbps":
            assert event["args"]["value"] <= HARDWARE["hbm_read_gbps"] * (1 + 1e-9)
        if event["ph"] == "C" and event["name"] == "aic":
            assert 0 <= event["args"]["value"] <= 24


def test_the_picture_shows_one_layer_on_every_stream(result: Evaluation) -> None:
    shown = timeline_picture(result.graph, result.timeline)
    streams = {(op.die, op.stream) for op in result.graph.ops}
    assert len(shown.lanes) == len(streams)
    for lane in shown.lanes:
        assert lane.bars
        for bar in lane.bars:
            assert bar.x >= 0
            assert bar.x + bar.width <= 1080.6
    assert result.layer_us == pytest.approx(1080.0 / shown.ticks[1][0] * float(shown.ticks[1][1]))
    assert 4 <= len(shown.ticks) <= 11
    assert all(float(label) == int(float(label)) for _, label in shown.ticks)


def test_the_page_is_offline_and_escapes_names(result: Evaluation, tmp_path: Path) -> None:
    hostile = '<script>alert("x")</script>'
    model = replace(result.schedule, model=hostile)
    entry = entry_of(hostile, result, "schedule.yaml")
    ops = tuple(replace(op, name=hostile) for op in result.graph.ops)
    shown = replace(result, schedule=model, graph=replace(result.graph, ops=ops))
    text = write_simulation_report(tmp_path / "a.html", entry, shown).read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    for outside in ("http:", "https:", "src=", "@import", "url("):
        assert outside not in text
    payload = {
        "candidates": 2,
        "evaluated": 1,
        "pruned": 1,
        "open": 0,
        "proven_optimal": True,
        "gap": 0.0,
        "feasible": 2,
        "tie_count": 1,
        "tie_tolerance": 0.01,
        "tie_ranges": {"knob": [1.0]},
        "infeasible": {hostile: 3},
        "best": entry,
        "tie_set": [entry],
        "baselines": [entry, {"name": hostile, "infeasible": "no"}],
    }
    points = [({"knob": 1.0}, 2000.0), ({"knob": 2.0}, 1000.0)]
    sections = [("Why", ["sharing decides", hostile])]
    text = write_search_report(tmp_path / "b.html", payload, shown, points, sections).read_text()
    assert "<script" not in text
    assert "<li>sharing decides</li>" in text
    assert "TPOT against the searched knobs" in text


def test_the_page_words_evidence_as_the_terminal_does(result: Evaluation, tmp_path: Path) -> None:
    shown = replace(result, evidence="guessed", extrapolated=("mla", "topk"))
    entry = entry_of("it", shown, "schedule.yaml")
    text = write_simulation_report(tmp_path / "a.html", entry, shown).read_text()
    assert evidence_text(entry) == "guessed; extrapolated: mla, topk"
    assert evidence_text(entry) in text


def test_clipped_prefetches_of_like_layers_share_a_clause() -> None:
    clipped = [("layer.0.w", 2000, 1000), ("layer.1.w", 2000, 1000), ("lm_head", 9, 8)]
    said = clipped_text(clipped)
    assert said.count("2,000 -> 1,000 bytes (in 2 layers)") == 1
    assert "lm_head 9 -> 8 bytes." in said


def test_knob_plots_mark_the_best_and_the_best_at_each_level() -> None:
    points = [
        ({"a": 0.0, "b": 1.0}, 30.0),
        ({"a": 0.0, "b": 2.0}, 20.0),
        ({"a": 1.0, "b": 1.0}, 10.0),
        ({"a": 1.0, "b": 2.0}, 40.0),
    ]
    a, b = knob_plots(points, "TPOT")
    assert [label for _, label in a.levels] == ["0", "1"]
    assert a.best == (a.levels[1][0], 150.0)
    assert [y for _, y, _ in b.line] == [150.0, pytest.approx(150.0 * 8 / 18)]
    assert knob_plots([({"a": 0.0}, 1.0)], "TPOT") == []
    assert knob_plots([], "TPOT") == []
