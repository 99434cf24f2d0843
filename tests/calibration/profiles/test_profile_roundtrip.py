"""What the twin exports, read back: every op with its times, cores and shapes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.profiles.collectives import collectives_of
from calibration.profiles.kernels import Kernel
from calibration.profiles.mapping import Context, map_kernel
from calibration.profiles.measured import noted_context
from calibration.profiles.profile import RankProfile, read_profile
from calibration.profiles.skipped import Skips
from calibration.profiles.trace import stream_events
from calibration.profiles.waits import read_trace
from hardware_models.demand import OpSpec
from hardware_models.hardware import load_hardware
from hardware_models.ops import (
    BatchMatMul,
    Collective,
    Combine,
    Dispatch,
    GatingTopK,
    GroupedMatMul,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    QuantMatMul,
    RowOp,
    Sample,
)
from twin.engine.reference import simulate
from twin.engine.timeline import Timeline
from twin.graph.build import build_step_graph
from twin.graph.step_graph import Op, StepGraph
from twin.models import load_model
from twin.report.ascend import write_ascend
from twin.report.ascend_launches import STEP
from twin.report.ascend_rows import collective_of, is_kernel
from twin.schedule_io import load_schedule, shipped_schedules

Exported = tuple[Path, StepGraph, Timeline]
KEPT = (BatchMatMul, Combine, Dispatch, GatingTopK, MatMul, MlaDecodeAttention, MlaProlog,
        QuantMatMul, Sample)  # fmt: skip


@pytest.fixture(scope="module", params=[x for x in shipped_schedules() if "/" not in x])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    schedule = load_schedule(request.param)
    hardware = load_hardware(schedule.deployment.hardware)
    graph = build_step_graph(schedule, load_model(schedule.model), hardware, layers=4)
    timeline = simulate(graph)
    folder = tmp_path_factory.mktemp("exported")
    return write_ascend(folder / "profile", graph, timeline, {"schedule": "s"}), graph, timeline


def _ops(graph: StepGraph, rank: RankProfile) -> list[Op]:
    return [op for op in graph.ops if op.die == rank.rank and is_kernel(op.spec)]


def _kernels_by_op(rank: RankProfile) -> dict[str, Kernel]:
    """Kernels on cores by their own name, collectives without cores by the twin's."""
    assert rank.simulated_names is not None
    found = {rank.simulated_names[k.name]: k for k in rank.counted.collectives}
    return {**found, **{k.name: k for k in (*rank.counted.computing, *rank.counted.carriers)}}


def test_every_op_comes_back_with_its_times_and_cores(exported: Exported) -> None:
    folder, graph, timeline = exported
    profile = read_profile(folder)
    assert [rank.rank for rank in profile] == [die.index for die in graph.dies]
    for rank in profile:
        assert not rank.skipped
        assert rank.steps == (STEP,)
        found = _kernels_by_op(rank)
        ops = _ops(graph, rank)
        assert set(found) == {op.name for op in ops}
        for op in ops:
            kernel, record = found[op.name], timeline.records[op.index]
            assert rank.origin_us + kernel.start_us == record.start_us
            assert rank.origin_us + kernel.end_us == record.end_us
            if op.cores.aic or op.cores.aiv:
                assert kernel.cores == (op.cores.aic or op.cores.aiv)
                assert kernel.mixed_cores == (op.cores.aiv if op.cores.aic else 0)


def _bare(spec: OpSpec) -> OpSpec:
    """The spec without the names of its weights, which a profile does not have."""
    if isinstance(spec, MlaProlog):
        return replace(spec, weights=("w1", "w2", "w3", "w4"))
    return replace(spec, weight="w") if hasattr(spec, "weight") else spec  # type: ignore[call-arg]


def test_every_op_comes_back_as_its_kind_and_shapes(exported: Exported) -> None:
    folder, graph, _ = exported
    compared = 0
    for rank in read_profile(folder):
        found = _kernels_by_op(rank)
        # KV tokens and EP come from what the export noted of itself.
        context = noted_context(rank.files, Context())
        for op in _ops(graph, rank):
            mapped = map_kernel(found[op.name], context)
            if isinstance(op.spec, KEPT):
                expected = _bare(op.spec)
                if isinstance(expected, Dispatch | Combine):
                    expected = replace(expected, rows=float(round(expected.rows)))
                assert mapped.spec == expected
                compared += 1
            elif isinstance(op.spec, GroupedMatMul):
                assert isinstance(mapped.spec, GroupedMatMul)
                assert (mapped.spec.k, mapped.spec.n) == (op.spec.k, op.spec.n)
                assert mapped.spec.rows == round(op.spec.rows)
                compared += 1
            elif isinstance(op.spec, RowOp):
                assert mapped.kind == op.spec.op
                compared += 1
    assert compared > 50


def test_sums_and_collectives_agree_between_the_files(exported: Exported) -> None:
    folder, _, timeline = exported
    for rank in read_profile(folder):
        totals = rank.totals_by_type()
        assert len(rank.statistic) == len(totals)
        for row in rank.statistic:
            count, total_us = totals[row.type, row.core]
            assert (row.count, row.total_us) == (count, pytest.approx(total_us, abs=1e-3))
        spans = {k.name: k for k in rank.counted.collectives}
        assert len(rank.collectives) == len(spans)
        for record in rank.collectives:
            assert spans[record.name].duration_us == pytest.approx(record.elapsed_us, abs=1e-6)
            parts = record.wait_us + record.transit_us + record.idle_us
            assert parts == pytest.approx(record.elapsed_us, rel=1e-9)
        (step,) = rank.step_traces
        ends = rank.origin_us + max(k.end_us for k in rank.kernels)
        assert step.total_us == pytest.approx(ends, rel=1e-9)
        assert ends <= timeline.makespan_us


def test_the_links_of_a_communicator_carry_what_its_collectives_moved(exported: Exported) -> None:
    folder, _, _ = exported
    for rank in read_profile(folder):
        path = rank.files.file("communication_matrix.json")
        assert path is not None
        matrix = json.loads(path.read_text())[f"step{STEP}"]["collective"]
        moved: dict[str, float] = {}
        for record in rank.collectives:
            if not record.group.startswith("link_"):
                kind = record.name.partition("__")[0].removeprefix("hcom_").lower()
                key = f"{kind}-total@{record.group}"
                moved[key] = moved.get(key, 0.0) + record.moved_mb
        assert set(matrix) == set(moved)
        for name, links in matrix.items():
            sizes = {link: entry["Transit Size(MB)"] for link, entry in links.items()}
            assert sum(sizes.values()) == pytest.approx(moved[name], rel=1e-9)
            own = [link for link in sizes if len(set(link.split("-"))) == 1]
            assert [sizes[link] for link in own] == [0.0]
            assert len(sizes) == int(name.split("_")[-2])


def test_the_trace_holds_every_op_in_the_form_of_a_profiler(exported: Exported) -> None:
    folder, graph, timeline = exported
    for rank in read_profile(folder):
        path = rank.files.file("trace_view.json")
        assert path is not None
        events = [event for _, event in stream_events(path, Skips())]
        assert events == json.loads(path.read_text())
        named = {}
        for event in events:
            arguments = event.get("args")
            assert isinstance(arguments, dict)
            if event["ph"] == "X":
                assert isinstance(event["ts"], str)
                if "Simulated Op" in arguments:
                    named[arguments["Task Id"]] = (float(event["ts"]), event["dur"])
        mine = [op for op in graph.ops if op.die == rank.rank]
        assert set(named) == {op.index for op in mine}
        for op in mine:
            record = timeline.records[op.index]
            assert named[op.index] == (record.start_us, record.end_us - record.start_us)
        facts = read_trace(path, rank.origin_us, Skips())
        assert [span.step for span in facts.steps] == [STEP]


def test_one_die_tells_the_dies_and_bytes_of_its_collectives(exported: Exported) -> None:
    folder, graph, _ = exported
    for rank in read_profile(folder):
        assert rank.simulated_names is not None
        known = collectives_of([rank.files])
        ops = {op.name: op for op in graph.ops if op.die == rank.rank}
        for name, op_name in rank.simulated_names.items():
            op = ops[op_name]
            if isinstance(op.spec, Collective):
                assert known.dies[name] == op.spec.group
                assert known.moved_mb[name] == op.demand.link_bytes / 1e6


def test_a_folder_is_marked_and_holds_no_formula(exported: Exported) -> None:
    folder, graph, _ = exported
    for die in graph.dies:
        rank = folder / f"die{die.index}_simulated_ascend_pt"
        for name in (f"profiler_info_{die.index}.json", "profiler_metadata.json"):
            assert json.loads((rank / name).read_text())["simulated"] is True
    for path in folder.glob("**/*.csv"):
        with path.open(newline="") as file:
            for row in csv.reader(file):
                assert not any(cell.startswith(("=", "+", "-", "@", "\t")) for cell in row)


def test_the_members_of_a_collective_share_its_name(exported: Exported) -> None:
    folder, graph, _ = exported
    members: dict[str, set[int]] = {}
    for op in graph.ops:
        if op.rendezvous and collective_of(op.spec):
            members.setdefault(op.rendezvous, set()).add(op.die)
    shared = [dies for dies in members.values() if len(dies) > 1]
    names = [{r.name for r in rank.collectives} for rank in read_profile(folder)]
    common = set.intersection(*names) if len(names) > 1 else set()
    assert (len(common) > 0) == bool(shared)
