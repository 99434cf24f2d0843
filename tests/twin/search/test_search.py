"""The command: bytes, keys, brute force, infeasible spaces, wrong input."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hardware_models.hardware import load_hardware
from twin.cli import run
from twin.evaluate import evaluate
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.sealed import SEALED, read_sealed
from twin.search.__main__ import SEALED_RECOMMENDED, main
from twin.search.config import SearchConfig
from twin.search.run_folder import SCHEDULES
from twin.search.shards import POINTS, SHARDS

SMALL = [
    "search.knobs.mla_1.levels=[0,1]",
    "search.knobs.mla_0.levels=[1]",
    "search.knobs.gate_up.levels=[1]",
    "search.knobs.down.levels=[1]",
    "draws=2",
    "top=3",
]
COLOCATED = ["scenario=colocated", "search.knobs.main_cores.levels=[12,16]", *SMALL]
COLOCATED += ["search.knobs.router.levels=[0,1]", "search.knobs.main_vector_cores.levels=[32]"]
AFD = ["scenario=afd", "search.knobs.ratio.levels=[1,2,3]", *SMALL]
AFD += ["search.knobs.w2.levels=[0,1]", "search.knobs.w13.levels=[0.5]"]
AFD += ["search.knobs.router.levels=[1]"]
BASELINES = {
    "serial, all cores",
    "recipe c16v32 + c8v16",
    "c12v24 twice",
    "no prefetch",
    "AFD 1:1",
}
ENTRY_KEYS = {
    "name",
    "schedule",
    "step_ms",
    "tpot_ms",
    "tokens_per_s_per_die",
    "tokens_per_s_per_chip",
    "hbm_gib",
    "interval",
    "evidence",
}


def search(folder: Path, *arguments: str) -> int:
    return run("search", SearchConfig, main, [*arguments, f"output={folder}"])


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module", params=[COLOCATED, AFD], ids=["colocated", "afd"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    assert search(folder, *request.param, "workers=1", "seal=true") == 0
    return folder


def test_the_result_has_the_stable_keys(ran: Path) -> None:
    found = result(ran)
    assert found["command"] == "twin.search"
    assert found["candidates"] == found["feasible"] + sum(found["infeasible"].values())
    assert found["proven_optimal"] is True
    assert set(found["best"]) >= ENTRY_KEYS
    rule = [b for b in found["baselines"] if b["name"].startswith("closed-form A:F ")]
    assert len(rule) == ("ratio" in found["space"])
    assert {b["name"] for b in found["baselines"] if b not in rule} == BASELINES
    assert all("2601.21351" in b["reasoning"] for b in rule)
    for entry in [*found["tie_set"], *found["pareto"], *found["baselines"]]:
        if "infeasible" not in entry:
            assert set(entry) >= ENTRY_KEYS
            assert (ran / entry["schedule"]).is_file()
            assert entry["interval"][0] <= entry["interval"][1]
    for name in ("schedule.yaml", "trace.json", "report.html", "timing.json", POINTS):
        assert (ran / name).stat().st_size > 0


def test_the_answer_says_what_decides_and_recommends_the_most_robust_tie(ran: Path) -> None:
    found = result(ran)
    best, check = found["best"], found["contention"]
    assert check["winner_without_ms"] <= best["tpot_ms"]
    assert check["without"]["latency_ms"] <= check["winner_without_ms"]
    assert check["without"]["with_contention_ms"] >= best["tpot_ms"] * (1 - 1e-9)
    ranked = found["robustness"]["ranked"]
    assert [tie["name"] for tie in found["tie_set"]] == [each["name"] for each in ranked]
    assert found["recommended"] == found["tie_set"][0]
    assert "best" in {each["name"] for each in ranked}
    assert all(each["skew"] > 0 for each in ranked)
    lines = found["latency"]["best"]
    assert lines["step_ms"] == best["step_ms"]
    assert lines["per_accepted_token_ms"] == best["tpot_ms"]
    assert lines["serving_benchmark_ms"] > best["tpot_ms"]
    explained = found["explain"]
    assert {each["knob"] for each in explained["decisions"]} == set(found["space"])
    assert all(sum(shares.values()) == pytest.approx(1) for shares in explained["bounds"].values())
    page = (ran / "report.html").read_text("utf-8")
    assert "worth of each decision" in page
    assert page.count("unlike the best") == len(found["tie_set"]) - 1
    assert "as a serving benchmark reports it" in page


def test_the_best_and_the_recommended_are_sealed(ran: Path) -> None:
    found = result(ran)
    for name, key in ((SEALED, "best"), (SEALED_RECOMMENDED, "recommended")):
        if key == "recommended" and found[key] == found["best"]:
            assert not (ran / name).exists()
            continue
        sealed = read_sealed(ran / name)
        assert sealed.schedule == load_schedule(str(ran / found[key]["schedule"]))
        assert sealed.latency_us == pytest.approx(found[key]["tpot_ms"] * 1e3)
        interval = [sealed.low_us / 1e3, sealed.high_us / 1e3]
        assert interval == pytest.approx(found[key]["interval"])


def test_the_points_are_a_table_with_the_level_of_every_knob(ran: Path) -> None:
    found = result(ran)
    table = pq.read_table(ran / POINTS, use_threads=False)
    assert {f"knob.{name}" for name in found["space"]} < set(table.column_names)
    best = min(table.to_pylist(), key=lambda row: (row["latency_us"], row["index"]))
    assert best["latency_us"] / 1e3 == pytest.approx(found["best"]["tpot_ms"], rel=1e-9)
    assert {name: best[f"knob.{name}"] for name in found["space"]} == found["best"]["knobs"]
    assert best["tokens_per_s_per_die"] == pytest.approx(found["best"]["tokens_per_s_per_die"])


def test_baselines_serve_the_same_batch_on_the_same_dies(ran: Path) -> None:
    found = result(ran)
    best = load_schedule(str(ran / "schedule.yaml"))
    for entry in found["baselines"]:
        schedule = load_schedule(str(ran / entry["schedule"]))
        assert schedule.workload == best.workload
        assert schedule.deployment.total_dies == best.deployment.total_dies


def test_the_saved_schedule_alone_gives_the_same_numbers(ran: Path) -> None:
    found = result(ran)
    schedule = load_schedule(str(ran / "schedule.yaml"))
    again = evaluate(schedule, load_model(schedule.model), load_hardware("a3-752t"))
    assert again.latency_us / 1e3 == found["best"]["tpot_ms"]
    assert again.step_us / 1e3 == found["best"]["step_ms"]


def test_two_processes_write_the_same_bytes(ran: Path, tmp_path: Path) -> None:
    arguments = AFD if "ratio" in result(ran)["space"] else COLOCATED
    assert search(tmp_path, *arguments, "workers=2") == 0
    for name in ("result.json", "schedule.yaml", "trace.json", POINTS):
        assert (tmp_path / name).read_bytes() == (ran / name).read_bytes()
    names = sorted(path.name for path in (ran / SHARDS).iterdir())
    assert names == sorted(path.name for path in (tmp_path / SHARDS).iterdir())
    assert len(names) > 1
    for name in names:
        assert (tmp_path / SHARDS / name).read_bytes() == (ran / SHARDS / name).read_bytes()


def test_an_illegal_ratio_is_counted_not_dropped(tmp_path: Path) -> None:
    assert search(tmp_path, *AFD, "workers=1", "draws=0") == 0
    infeasible = result(tmp_path)["infeasible"]
    assert sum(infeasible.values()) == 8
    assert any("128 dies" in reason for reason in infeasible)


def test_nothing_feasible_is_exit_3_with_the_constraint_and_by_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*COLOCATED, "workers=1", "draws=0", "top=1", "deployment.lm_head_tp=8"]
    assert search(tmp_path, *arguments) == 0
    assert search(tmp_path, *arguments, "deployment.dies=[8]") == 3
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", SHARDS, SCHEDULES}
    assert not list((tmp_path / SCHEDULES).iterdir())
    error = capsys.readouterr().err
    assert "memory of a colocated die" in error
    assert "GiB too much" in error
    assert "deployment.dies=16 (it is 8)" in error
    found = result(tmp_path)
    assert found["feasible"] == 0
    assert {"field": "deployment.dies", "was": 8, "to": 16} in found["nearest_changes"]
    assert found["proven_optimal"] is False
    assert sum(found["infeasible"].values()) == found["candidates"]


def test_every_reason_that_leaves_nothing_feasible_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["scenario=afd", "search=few_afd", "deployment.dies=[4]", "workers=1"]
    assert search(tmp_path, *given) == 3
    error = capsys.readouterr().err
    reasons = result(tmp_path)["infeasible"]
    assert len(reasons) > 1
    assert sum(reasons.values()) == 216
    assert all(f"{count} fail on {reason}" in error for reason, count in reasons.items())


def test_a_spent_budget_leaves_an_answer_with_a_gap(tmp_path: Path) -> None:
    every = "levels=[0,0.25,0.5,0.75,1]"
    knobs = ("mla_1", "mla_0", "gate_up", "down", "router")
    wide = [f"search.knobs.{name}.{every}" for name in knobs]
    wide += ["search.knobs.main_cores.levels=[4,14]", "search.knobs.main_vector_cores.levels=[28]"]
    wide += ["budget=1", "draws=0", "top=1"]
    assert search(tmp_path, *COLOCATED, *wide, "workers=1") == 0
    found = result(tmp_path)
    assert found["open"] > 0
    assert not found["proven_optimal"]
    assert 0 < found["gap"] < 1
    assert found["tie_count"] == 1
    assert found["robustness"] is None
    assert found["recommended"] == found["best"]


def test_a_tiny_model_is_searched_and_its_schedule_is_tiny(tmp_path: Path) -> None:
    assert search(tmp_path, *COLOCATED, "model=tiny", "workers=1") == 0
    schedule = load_schedule(str(tmp_path / "schedule.yaml"))
    assert schedule.model == "tiny"
    assert schedule.deployment.total_dies == 1


@pytest.mark.parametrize(
    "wrong",
    [
        "scenario=nowhere",
        "no_such_key=1",
        "top=0",
        "model=llama",
        "search.knobs.mla_1.levels=[2]",
        "search.knobs.mla_1.drives=hope",
        "workload.global_batch=-1",
        "hardware.die=a4",
        "deployment.dies=[0]",
        "deployment.transport=camp2p",
    ],
)
def test_wrong_input_is_exit_2_and_one_line_that_names_it(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(tmp_path, *COLOCATED, "workers=1", wrong) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error:")
    assert any(part in error for part in wrong.replace("=", ".").split(".") if len(part) > 2)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("missing", ["aic_count", "collective_latency_us", "hbm_capacity_bytes"])
def test_a_die_that_lacks_a_parameter_is_wrong_input_not_an_infeasible_space(
    missing: str, workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = (resources.files("hardware_models") / "dies" / "a3-752t.yaml").read_text("utf-8")
    lines = [line for line in shipped.splitlines() if not line.startswith(f"  {missing}:")]
    die = tmp_path / "die.yaml"
    die.write_text("\n".join(lines))
    assert search(tmp_path, *COLOCATED, f"workers={workers}", f"hardware.die={die}") == 2
    assert missing in capsys.readouterr().err


def test_another_graph_mode_drops_the_scopes_that_it_cannot_have(tmp_path: Path) -> None:
    arguments = [*COLOCATED, "deployment.graph_mode=npugraph_ex", "workers=1", "draws=0"]
    assert search(tmp_path, *arguments) == 0
    schedule = load_schedule(str(tmp_path / "schedule.yaml"))
    assert schedule.deployment.graph_mode == "npugraph_ex"
    assert schedule.super_kernel == ()
    assert search(tmp_path, *COLOCATED, "deployment.graph_mode=eager", "workers=1") == 2
