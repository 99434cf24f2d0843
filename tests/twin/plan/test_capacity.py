"""Capacity against a plain scan of all batches and schedules; what binds; wrong input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plans import files, plan, result

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.evaluate import evaluate, latencies
from twin.models import load_model
from twin.plan.capacity import cost_per_million
from twin.plan.largest_batch import CapacitySearch, largest, parts_of
from twin.schedule_io import load_schedule
from twin.search.changes import with_batch
from twin.search.config import Knob
from twin.search.feasible import rejection
from twin.search.space import Space

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")
MLA = Knob(
    drives="prefetch",
    levels=(0, 1),
    weights={"attention.1.q_b": "dense.0.gate_up", "next.attention.0.q_b": "dense.1.down"},
)
SPACES = {
    "recipe_colocated": {"cores": Knob(drives="cores", stage="stage2", levels=(8, 16)), "mla": MLA},
    "recipe_afd": {
        "ratio": Knob(drives="ratio", levels=(1, 3)),
        "parts": Knob(drives="micro_batches", levels=(1, 2)),
        "mla": MLA,
    },
}


def space_of(name: str, dies: int) -> Space:
    return Space(load_schedule(name), MODEL, HARDWARE, SPACES[name], (dies,))


def brute_force(space: Space, limit_us: float, most: int) -> tuple[int, float]:
    """The largest batch of at most ``most`` sequences a group, and its lowest latency."""
    found = (0, 0.0)
    for index in range(space.size):
        for sequences in range(1, most + 1):
            try:
                schedule = space.schedule(index)
            except InputError:
                break
            groups = schedule.deployment.attention.attention_groups
            schedule = with_batch(schedule, sequences * groups)
            if rejection(schedule, MODEL, HARDWARE) is not None:
                continue
            (us,) = latencies(schedule, MODEL, [HARDWARE])
            if us <= limit_us:
                found = max(found, (sequences * groups, -us))
    return found[0], -found[1]


@pytest.mark.parametrize(
    ("name", "dies", "limit_ms", "most"),
    [("recipe_colocated", 64, 16.0, 20), ("recipe_afd", 64, 15.5, 14)],
)
def test_the_largest_batch_is_that_of_a_plain_scan(
    name: str, dies: int, limit_ms: float, most: int
) -> None:
    space = space_of(name, dies)
    search = CapacitySearch(limit_ms * 1e3)
    found = largest([search.of(part) for part in parts_of(space)])
    batch, us = brute_force(space, limit_ms * 1e3, most)
    assert found.batch == batch > 0
    assert found.best is not None
    assert found.best.latency_us == pytest.approx(us, rel=1e-9)
    assert found.best.schedule.workload == replace(space.base.workload, global_batch=batch)
    assert found.binds.reason == "TPOT"
    assert 0 < found.binds.excess < 0.2
    assert found.next_batch > batch


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capacity")
    arguments = ["nodes=[1,2,3]", "slo.tpot_ms=60", "price_per_die_hour=3.6", "layouts=[colocated]"]
    assert plan(folder, *arguments) == 0
    return folder


def test_each_number_of_nodes_names_what_stops_it(ran: Path) -> None:
    rows = {row["nodes"]: row for row in result(ran)["rows"]}
    assert {n: row["dies"] for n, row in rows.items()} == {1: 16, 2: 32, 3: 48}
    one, two, three = rows[1], rows[2], rows[3]
    assert one["stops_the_next"]["constraint"] == "memory of a colocated die"
    assert "GiB too much" in one["stops_the_next"]["detail"]
    assert two["stops_the_next"]["constraint"] == "TPOT"
    assert "above the limit of 60 ms" in two["stops_the_next"]["detail"]
    assert two["left"]["tpot_ms"] > 0
    assert two["left"]["hbm_gib"] > 0
    assert "512 experts" in three["stops_the_next"]["detail"]
    assert three["sequences"] == 0
    assert "best" not in three


def test_costs_are_the_price_of_the_time_of_a_die(ran: Path) -> None:
    rows = [row for row in result(ran)["rows"] if "best" in row]
    for row in rows:
        hours = 1e6 / (row["best"]["tokens_per_s_per_die"] * row["dies"]) / 3600 * row["dies"]
        assert row["cost_per_million_tokens"] == pytest.approx(3.6 * hours)
    assert cost_per_million(3.6, 1000.0) == pytest.approx(1.0)


def test_schedules_simulate_to_what_the_plan_says(ran: Path) -> None:
    for row in result(ran)["rows"]:
        if "best" not in row:
            continue
        schedule = load_schedule(str(ran / row["best"]["schedule"]))
        again = evaluate(schedule, MODEL, HARDWARE)
        assert again.latency_us / 1e3 == row["best"]["tpot_ms"] <= 60
        assert schedule.workload.global_batch == row["sequences"]
        assert schedule.deployment.total_dies == row["dies"]
        assert 0 <= row["share_of_draws_within"] <= 1


def test_two_processes_write_the_same_bytes(ran: Path, tmp_path: Path) -> None:
    arguments = ["nodes=[1,2,3]", "slo.tpot_ms=60", "price_per_die_hour=3.6", "layouts=[colocated]"]
    assert plan(tmp_path, *arguments, "workers=2") == 0
    assert files(tmp_path) == files(ran)


def test_nothing_feasible_is_exit_3_with_the_constraint_and_by_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, "nodes=[2]", "slo.tpot_ms=5") == 3
    said = capsys.readouterr()
    assert "above the limit of 5 ms" in said.err.splitlines()[-1]
    assert "stops the next" in said.out
    rows = result(tmp_path)["rows"]
    assert [row["sequences"] for row in rows] == [0, 0]
    assert all(row["stops_the_next"]["excess"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("slo.tpot_ms=0", "slo.tpot_ms"),
        ("nodes=[]", "nodes"),
        ("nodes=[0]", "nodes"),
        ("nodes=[1,1]", "nodes"),
        ("nodes=[1.5]", "nodes"),
        ("dies_per_node=0", "dies_per_node"),
        ("price_per_die_hour=-1", "price_per_die_hour"),
        ("layouts=[prefill]", "layouts"),
        ("draws=1", "draws"),
        ("deployment.dies=[64]", "deployment.dies"),
        ("workload.global_batch=64", "workload.global_batch"),
        ("workload.kv_tokens=0", "workload.kv_tokens"),
        ("spaces.colocated.knobs.mla.levels=[2]", "spaces.colocated.knobs.mla.levels"),
        ("spaces.colocated.knobs.main_cores.stage=end", "spaces.colocated.knobs.main_cores.stage"),
        ("+spaces.afd.knobs.b={drives: batch, levels: [1]}", "spaces.afd.knobs.b.drives"),
        ("scenario=afd", "search"),
        ("no_such_key=1", "no_such_key"),
    ],
)
def test_wrong_input_is_exit_2_and_named(
    wrong: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, wrong) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert named in said
    assert not (tmp_path / "result.json").exists()


def test_a_size_that_nobody_asked_for_is_made_to_fit_few_dies() -> None:
    space = space_of("recipe_afd", 16)
    (part, *_) = parts_of(space)
    asked = CapacitySearch(1e5).of(part)
    assert asked.binds.reason.startswith("deployment.roles.attention.lm_head_tp")
    free = CapacitySearch(1e5, ("lm_head_tp", "embed_tp")).of(part)
    assert free.sizes == {"lm_head_tp": 8}
    assert "memory of a ffn die" in free.binds.reason
    (part, *_) = parts_of(space_of("recipe_afd", 64))
    assert CapacitySearch(1e5, ("lm_head_tp",)).of(part).sizes == {}


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (["slo.tpot_ms=2"], "slo.tpot_ms="),
        (["layouts=[afd]", "slo.tpot_ms=50"], "nodes=[2]"),
    ],
)
def test_nothing_feasible_names_the_nearest_change_and_it_helps(
    arguments: list[str], change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["scenario=capacity", "nodes=[1]", *arguments]
    assert plan(tmp_path, *asked) == 3
    _, _, named = capsys.readouterr().err.strip().rpartition("nearest feasible change: ")
    assert named.startswith(change)
    assert plan(tmp_path, *asked, named) == 0
