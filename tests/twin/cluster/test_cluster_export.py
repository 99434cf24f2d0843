"""A cluster's step as profiles of its dies: nothing is lost, MindStudio's tool reads it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import SKEWED, afd, colocated, simulation

from calibration.profiles.folder import find_ranks
from calibration.profiles.profile import read_profile
from twin.cli import run
from twin.cluster.__main__ import ClusterConfig, main
from twin.cluster.export import export_sample
from twin.report.ascend_rows import collective_of, is_kernel
from twin.schedule import Schedule
from twin.schedule_io import save_schedule

TOOL = Path(sys.executable).with_name("msprof-analyze")


def cluster(folder: Path, *arguments: str) -> int:
    save_schedule(colocated(16), folder / "small.yaml")
    small = (f"schedule={folder / 'small.yaml'}", "layers=2", "seeds=2", "load.kind=zipf",
             "+hardware.values.hbm_capacity_bytes=1e12")  # fmt: skip
    return run("cluster", ClusterConfig, main, [*small, f"output={folder / 'run'}", *arguments])


@pytest.mark.parametrize("schedule", [colocated(16), afd(3, 16)], ids=["colocated", "afd"])
def test_every_op_of_every_die_comes_back(schedule: Schedule, tmp_path: Path) -> None:
    simulated = simulation(schedule, SKEWED, layers=2)
    sample = simulated.run(3)
    export_sample(tmp_path, simulated, sample, range(16), {})
    graph, records = simulated.step_graph(), sample.records.reshape(-1)
    profile = read_profile(tmp_path)
    assert [rank.rank for rank in profile] == list(range(16))
    members: dict[str, set[str]] = {}
    for rank in profile:
        assert rank.simulated_names is not None
        assert not rank.skipped
        found = {rank.simulated_names[k.name]: k for k in rank.counted.collectives}
        found |= {k.name: k for k in (*rank.counted.computing, *rank.counted.carriers)}
        own = [op for op in graph.ops if op.die == rank.rank and is_kernel(op.spec)]
        assert set(found) == {op.name for op in own}
        for op in own:
            record = records[op.index]
            assert rank.origin_us + found[op.name].start_us == record.start_us
            assert rank.origin_us + found[op.name].end_us == record.end_us
        waits = {x.name: x.wait_us for x in rank.collectives}
        names = {op: name for name, op in rank.simulated_names.items()}
        for op in own:
            if collective_of(op.spec):
                assert waits[names[op.name]] == pytest.approx(records[op.index].peer_wait_us)
                if op.rendezvous:
                    members.setdefault(op.rendezvous, set()).add(names[op.name])
    # One name a collective over all of its members, and no name for two.
    assert members
    assert all(len(names) == 1 for names in members.values())
    assert len({name for names in members.values() for name in names}) == len(members)


def test_the_command_exports_the_dies_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "profile"
    assert cluster(tmp_path, f"export={folder}", "export_dies=[15,0,7,8,0]") == 0
    assert "profile of 4 of 16 simulated dies" in capsys.readouterr().out
    files = find_ranks(folder)
    assert [rank.rank for rank in files] == [0, 7, 8, 15]
    ranks = [{x.name for x in rank.collectives} for rank in read_profile(folder)]
    # Groups of 8 dies: 0 and 7 meet, 8 and 15 meet, and some collectives join all 16.
    assert len(ranks[0] & ranks[1]) > len(ranks[1] & ranks[2])
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]


def test_msprof_analyze_reads_a_whole_cluster(tmp_path: Path) -> None:
    folder, answer = tmp_path / "profile", tmp_path / "answer"
    assert cluster(tmp_path, f"export={folder}") == 0
    command = [str(TOOL), "cluster", "-d", str(folder), "-m", "all", "-o", str(answer)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "[ERROR]" not in said
    with (answer / "cluster_analysis_output" / "cluster_step_trace_time.csv").open() as file:
        found = {int(row["Index"]): row for row in csv.DictReader(file)}
    assert sorted(found) == list(range(16))
    for rank in read_profile(folder):
        (step,) = rank.step_traces
        row = found[rank.rank]
        assert float(row["Computing"]) == pytest.approx(step.computing_us, rel=1e-9)
        assert float(row["Stage"]) == pytest.approx(step.total_us, rel=1e-9)
    for name in ("cluster_communication.json", "cluster_communication_matrix.json"):
        assert (answer / "cluster_analysis_output" / name).stat().st_size > 1000
    groups = (answer / "cluster_analysis_output" / "communication_group.json").read_text()
    joined = {tuple(sorted(ranks)) for ranks in json.loads(groups)["collective"]}
    # The communicators of 8 dies that split o_proj, and that of all.
    assert joined == {tuple(range(8)), tuple(range(8, 16)), tuple(range(16))}
    assert "cannot be mapped" not in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("export=new", "export_dies=[16]"), "from 0 to 15"),
        (("export=new", "export_dies=[-1]"), "from 0 to 15"),
        (("export=new", "export_dies=[]"), "at least one die"),
        (("export_dies=[0]",), "null without export="),
        (("export=.",), "new or empty folder"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_runs(
    arguments: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster(tmp_path, *arguments) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run" / "result.json").exists()
