"""Break-even acceptance against its definition, on schedules tried one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import files, plan, result

from hardware_models.hardware import load_hardware
from twin.evaluate import latencies
from twin.models import load_model
from twin.plan.mtp import last_draft_chance
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.uncertainty import draw_hardware
from twin.workload import accepted_of, chance_of

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")
ONE = ["batches=[256]", "spaces.afd.knobs.ratio.levels=[1]"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mtp")
    assert plan(folder, "scenario=mtp", *ONE) == 0
    return folder


def with_drafts(schedule: Schedule, drafts: int, accepted: float) -> Schedule:
    return replace(
        schedule, workload=replace(schedule.workload, next_n=drafts, acceptance=accepted)
    )


def test_at_the_break_even_both_cost_the_same_per_token(ran: Path) -> None:
    rows = result(ran)["rows"]
    assert [(r["layout"], r["next_n"]) for r in rows] == [
        (layout, n) for layout in ("colocated", "afd") for n in (1, 2)
    ]
    for row in rows:
        drafted = load_schedule(str(ran / row["schedule"]))
        plain = load_schedule(str(ran / row["plain_schedule"]))
        assert (drafted.workload.next_n, plain.workload.next_n) == (row["next_n"], 0)
        at = with_drafts(drafted, row["next_n"], row["break_even_accepted"])
        (with_mtp,), (without,) = (latencies(s, MODEL, [HARDWARE]) for s in (at, plain))
        assert with_mtp == pytest.approx(without, rel=1e-9)
        (nothing_accepted,) = latencies(with_drafts(drafted, row["next_n"], 0.0), MODEL, [HARDWARE])
        assert nothing_accepted / without - 1 == pytest.approx(row["cost_below"]["tpot"])
        expected = with_drafts(drafted, row["next_n"], row["expected_accepted"])
        (as_expected,) = latencies(expected, MODEL, [HARDWARE])
        assert as_expected / without - 1 == pytest.approx(row["expected_tpot"])


def test_the_interval_comes_from_the_same_draws_for_both(ran: Path) -> None:
    variants = draw_hardware(HARDWARE, 4, 0)
    for row in result(ran)["rows"]:
        drafted = load_schedule(str(ran / row["schedule"]))
        plain = load_schedule(str(ran / row["plain_schedule"]))
        longer = np.array(latencies(with_drafts(drafted, row["next_n"], 0.0), MODEL, variants))
        even = longer / np.array(latencies(plain, MODEL, variants)) - 1
        low, high = np.quantile(even, [0.1, 0.9])
        at = row["break_even_accepted"]
        assert row["interval"] == pytest.approx([min(low, at), max(high, at)])
        paying = np.mean(even < row["expected_accepted"])
        assert row["share_of_draws_in_which_it_pays"] == pytest.approx(paying)


def test_two_processes_write_the_same_bytes(ran: Path, tmp_path: Path) -> None:
    assert plan(tmp_path, "scenario=mtp", *ONE, "workers=2") == 0
    assert files(tmp_path) == files(ran)


def test_a_split_kv_cache_has_no_drafts_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["scenario=mtp", "batches=[64]", "layouts=[colocated]", "deployment.kvp=8"]
    assert plan(tmp_path, *arguments, "deployment.o_proj_tp=8", "workload=no_mtp") == 3
    for row in result(tmp_path)["rows"]:
        assert "kvp" in row["detail"]
    assert "kvp" in capsys.readouterr().err
    assert result(tmp_path)["chance_of_a_draft"] is None


def test_nothing_feasible_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, "scenario=mtp", "batches=[1]", "layouts=[colocated]") == 3
    assert "128 attention groups" in capsys.readouterr().err
    assert plan(tmp_path, "scenario=mtp", "batches=[]") == 2
    assert plan(tmp_path, "scenario=mtp", "deployment.dies=[64,128]") == 2


@given(chance=st.floats(0, 1), drafts=st.sampled_from([1, 2]))
def test_chance_and_accepted_drafts_are_inverse(chance: float, drafts: int) -> None:
    accepted = accepted_of(chance, drafts)
    assert 0 <= accepted <= drafts
    assert chance_of(accepted, drafts) == pytest.approx(chance, abs=1e-9)


@given(longer=st.floats(1, 1.5))
def test_at_its_chance_the_second_draft_changes_nothing(longer: float) -> None:
    chance = last_draft_chance(longer)
    one, two = 1 / (1 + accepted_of(chance, 1)), longer / (1 + accepted_of(chance, 2))
    assert two == pytest.approx(one)


def test_drafts_that_cost_more_than_they_can_bring_never_pay(tmp_path: Path) -> None:
    """Where only choosing tokens counts, a draft costs as much as a token, and its own pass."""
    arguments = ["scenario=mtp", *ONE, "layouts=[colocated]"]
    assert plan(tmp_path, *arguments, "+hardware.values.argmax_us_per_melement=1e7") == 0
    one, two = result(tmp_path)["rows"]
    assert one["verdict"] == two["verdict"] == "never pays"
    assert one["break_even_accepted"] > 1
    assert two["break_even_accepted"] > 2
    assert one["break_even_chance"] is two["break_even_chance"] is None
    assert one["share_of_draws_in_which_it_pays"] == 0
