"""Colocated against AFD: numbers from the schedules alone, the crossover from both sides."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import yaml
from plans import FEW, files, plan, result

from hardware_models.hardware import load_hardware
from twin.evaluate import evaluate, latencies
from twin.models import load_model
from twin.plan.afd_or_not import full_batches
from twin.schedule_io import load_schedule
from twin.schema import load_dataclass
from twin.search.changes import with_batch
from twin.search.config import Knob
from twin.search.feasible import rejection
from twin.search.space import Space
from twin.uncertainty import draw_hardware

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")
DIES = 256
ARGUMENTS = [
    "scenario=afd_or_not",
    f"deployment.dies=[{DIES}]",
    "batches=[1024,256,512]",
    "spaces.afd.knobs.micro_batches.levels=[1]",
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("afd_or_not")
    assert plan(folder, *ARGUMENTS) == 0
    return folder


def test_rows_are_the_schedules_own_numbers(ran: Path) -> None:
    rows = result(ran)["rows"]
    assert [row["batch"] for row in rows] == [256, 512, 1024]
    variants = draw_hardware(HARDWARE, 4, 0)
    for row in rows:
        drawn = {}
        for layout in ("colocated", "afd"):
            schedule = load_schedule(str(ran / row[layout]["schedule"]))
            assert schedule.deployment.is_afd is (layout == "afd")
            assert schedule.deployment.total_dies == result(ran)["dies"] == DIES
            assert schedule.workload.global_batch == row["batch"]
            assert evaluate(schedule, MODEL, HARDWARE).latency_us / 1e3 == row[layout]["tpot_ms"]
            drawn[layout] = np.array(latencies(schedule, MODEL, variants))
        saves = 1 - row["afd"]["tpot_ms"] / row["colocated"]["tpot_ms"]
        assert row["afd_saves"] == pytest.approx(saves, rel=1e-6)
        gains = 1 - drawn["afd"] / drawn["colocated"]
        assert row["probability_afd_wins"] == np.mean(gains > 0)
        low, high = np.quantile(gains, [0.1, 0.9])
        assert row["interval"] == pytest.approx([min(low, saves), max(high, saves)])


def space_of(layout: str, batch: int) -> Space:
    """The command's narrow space, from its shipped files."""
    text = (resources.files("scenarios") / "search" / f"few_{layout}.yaml").read_text("utf-8")
    knobs = {
        name: load_dataclass(Knob, fields) for name, fields in yaml.safe_load(text)["knobs"].items()
    }
    for word in [*FEW, *ARGUMENTS]:
        key, _, value = word.partition("=")
        parts = key.split(".")
        if parts[:2] == ["spaces", layout]:
            knobs[parts[3]] = replace(knobs[parts[3]], levels=tuple(yaml.safe_load(value)))
    base = with_batch(load_schedule(f"recipe_{layout}"), batch)
    return Space(base, MODEL, HARDWARE, knobs, (DIES,))


def brute_force_us(layout: str, batch: int) -> float:
    """The lowest latency of all schedules, one by one."""
    space = space_of(layout, batch)
    schedules = map(space.schedule, range(space.size))
    running = [s for s in schedules if rejection(s, MODEL, HARDWARE) is None]
    return min(latencies(schedule, MODEL, [HARDWARE])[0] for schedule in running)


def test_the_winner_changes_exactly_at_the_crossover(ran: Path) -> None:
    found = result(ran)
    (crossover,) = found["crossovers"]
    assert crossover["faster_from_there"] == "colocated"
    assert 256 <= crossover["up_to_batch"] < 1024
    assert crossover["from_batch"] == crossover["up_to_batch"] + 1
    for name, afd_wins in (("up_to_batch", True), ("from_batch", False)):
        afd, colocated = (
            brute_force_us(layout, crossover[name]) for layout in ("afd", "colocated")
        )
        assert (afd < colocated) is afd_wins


def test_every_layout_is_at_its_fastest(ran: Path) -> None:
    for row in result(ran)["rows"]:
        for layout in ("colocated", "afd"):
            best_us = brute_force_us(layout, row["batch"])
            assert row[layout]["tpot_ms"] * 1e3 == pytest.approx(best_us, rel=1e-9)


def test_an_interval_across_zero_asks_for_two_runs(ran: Path) -> None:
    for row in result(ran)["rows"]:
        low, high = row["interval"]
        expected = "AFD" if low > 0 else "colocated" if high < 0 else "undecided"
        assert row["verdict"] == expected
        for path in row["measure"]:
            load_schedule(str(ran / path))
        assert bool(row["measure"]) is (low <= 0 <= high)
    assert {row["verdict"] for row in result(ran)["rows"]} >= {"undecided", "colocated"}


def test_between_full_batches_nothing_changes() -> None:
    spaces = [space_of(layout, 256) for layout in ("colocated", "afd")]
    full = full_batches(spaces, 256, 600)
    # 256 colocated dies, 128 attention dies at 1:1, 192 at 3:1.
    assert full == [256, 384, 512, 576]
    for layout in ("colocated", "afd"):
        assert brute_force_us(layout, 257) == brute_force_us(layout, 384)


def test_two_processes_write_the_same_bytes(ran: Path, tmp_path: Path) -> None:
    assert plan(tmp_path, *ARGUMENTS, "workers=2") == 0
    assert files(tmp_path) == files(ran)


def test_one_layout_alone_wins_and_says_why(tmp_path: Path) -> None:
    arguments = ["scenario=afd_or_not", "deployment.dies=[16]", "batches=[64]"]
    assert plan(tmp_path, *arguments) == 0
    (row,) = result(tmp_path)["rows"]
    assert row["verdict"] == "only colocated"
    assert "lm_head_tp" in row["afd"]["detail"] or "divide" in row["afd"]["detail"]
    assert result(tmp_path)["crossovers"] == []


@pytest.mark.parametrize(
    ("wrong", "code", "named"),
    [
        ("batches=[8]", 3, "attention groups"),
        ("layouts=[afd]", 2, "layouts"),
        ("batches=[0]", 2, "batches"),
        ("bases.colocated.default=recipe_long_context", 2, "deployment.dies"),
        ("deployment.transport=smoke", 2, "transport"),
    ],
)
def test_wrong_and_impossible_input_is_named(
    wrong: str, code: int, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, "scenario=afd_or_not", wrong) == code
    assert named in capsys.readouterr().err.splitlines()[-1]
