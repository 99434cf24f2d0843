"""Real profiles, where ../shared holds them: every file read, sums equal to the profiler's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibration.profiles.folder import find_ranks
from calibration.profiles.kernels import read_kernels
from calibration.profiles.profile import RankProfile, read_rank
from calibration.profiles.skipped import Skips, total
from calibration.profiles.trace import stream_events
from calibration.profiles.waits import read_trace

PROFILES = Path(__file__).parents[4] / "shared" / "data" / "profiles"
FOLDERS = sorted(PROFILES.glob("*_ascend_pt"))
LOOSE = sorted((PROFILES / "loose").glob("*.csv"))
TRACES = sorted(PROFILES.glob("**/*trace_view.json"))

pytestmark = pytest.mark.skipif(not FOLDERS, reason="no ../shared/data/profiles here")


def _read(folder: Path) -> RankProfile:
    (files,) = find_ranks(folder)
    return read_rank(files)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_sums_are_those_of_op_statistic(folder: Path) -> None:
    rank = _read(folder)
    assert not rank.skipped
    assert rank.kernels
    totals = rank.totals_by_type()
    if rank.statistic:
        said = {(row.type, row.core): (row.count, row.total_us) for row in rank.statistic}
        assert set(said) == set(totals)
        for key, (count, total_us) in said.items():
            assert totals[key][0] == count
            # Both print three decimals at best.
            assert totals[key][1] == pytest.approx(total_us, abs=0.0005 * (count + 1))
    else:
        assert all(kernel.type == "" for kernel in rank.kernels)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_collectives_are_those_of_communication_json(folder: Path) -> None:
    rank = _read(folder)
    spans = {k.name: k.duration_us for k in rank.counted.collectives}
    assert spans
    assert not rank.counted.carriers
    for record in rank.collectives:
        assert spans[record.name] == pytest.approx(record.elapsed_us, abs=0.01)
    if rank.collectives:
        assert len(rank.collectives) == len(spans)
    (step,) = rank.step_traces
    assert rank.steps == (step.step,)
    longest = max(k.end_us for k in rank.kernels)
    assert longest <= step.total_us * 1.05


@pytest.mark.parametrize("path", LOOSE, ids=lambda path: path.name)
def test_loose_and_edited_tables(path: Path) -> None:
    skips = Skips()
    found = read_kernels(path, skips)
    lines = path.read_bytes().count(b"\n")
    assert len(found.kernels) + total(skips.rows()) == lines - 1
    assert total(skips.rows()) == ("op_summary" in path.name)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parents[1].name)
def test_traces_are_streamed_whole(path: Path) -> None:
    skips = Skips()
    assert [event for _, event in stream_events(path, skips)] == json.loads(path.read_text("utf-8"))
    assert not skips.rows()
    facts = read_trace(path, 0, skips)
    assert facts.steps
