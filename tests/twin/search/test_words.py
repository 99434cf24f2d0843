"""Findings in sentences: what is said when, of a payload made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from twin.search.words import answer_lines, explain_lines, outside_lines, tie_lines


def payload() -> dict[str, Any]:
    best = {"name": "best", "schedule": "schedule.yaml", "tpot_ms": 10.0, "knobs": {"a": 1, "b": 2}}
    other = {**best, "name": "candidate 7", "schedule": "schedules/candidate-7.yaml"}
    ranked = [
        {"name": "candidate 7", "p90_ms": 10.5, "skew": 0.05},
        {"name": "best", "p90_ms": 11.0, "skew": 0.05},
    ]
    return {
        "best": best,
        "best_is_base": False,
        "recommended": other,
        "contention": {
            "winner_changes": False,
            "tolerance": 0.005,
            "without": {
                "knobs": {"a": 1, "b": 4},
                "latency_ms": 9.0,
                "with_contention_ms": 10.2,
            },
        },
        "latency": {
            "best": {
                "step_ms": 20.0,
                "per_accepted_token_ms": 10.0,
                "serving_benchmark_ms": 11.0,
                "serving_benchmark_range_ms": [10.5, 12.0],
                "host_gap_ms": 0.7,
                "sequences": 4,
                "padded_sequences": 6,
            }
        },
        "robustness": {"over": "parameter draws and skew", "considered": 9, "ranked": ranked},
        "explain": {
            "decisions": [
                {"knob": "a", "level": 1, "costs_ms": 0.5},
                {"knob": "b", "level": 2, "costs_ms": 0.0},
                {"knob": "c", "level": "x", "infeasible": "no room"},
            ],
            "bounds": {"ffn": {"wait": 0.6, "latency": 0.4}},
            "deciding_measurements": [
                {
                    "parameter": "p_us",
                    "kinds": ["matmul", "add"],
                    "between": ["best", "candidate 7"],
                    "moves_ms": 0.125,
                    "decides": True,
                }
            ],
            "would_change_the_winner": [],
        },
    }


def test_contention_is_said_first_and_loud_only_where_it_decides() -> None:
    calm = payload()
    assert "sharing does not decide" in answer_lines(calm)[0]
    calm["contention"]["winner_changes"] = True
    first = answer_lines(calm)[0]
    assert first.startswith("CONTENTION DECIDES")
    assert "b 4" in first
    assert "a 1" not in first
    assert "2.00% slower" in first
    calm["contention"]["without"]["knobs"] = calm["best"]["knobs"]
    assert "the same schedule" in answer_lines(calm)[0]


def test_a_base_that_is_the_best_is_said_before_all() -> None:
    said = payload()
    plain = answer_lines(said)
    said["best_is_base"] = True
    assert answer_lines(said) == ["the base schedule is already the best of this space", *plain]


def test_the_three_latencies_are_labelled() -> None:
    said = payload()
    line = answer_lines(said)[1]
    for part in (
        "step 20.00 ms",
        "accepted token 10.000 ms",
        "reports it 11.000 ms",
        "4 padded to 6",
    ):
        assert part in line
    said["latency"]["best"] |= {"padded_sequences": 4, "per_accepted_token_ms": None}
    line = answer_lines(said)[1]
    assert "padded" not in line
    assert "accepted" not in line


def test_the_recommended_tie_stands_against_the_best() -> None:
    said = payload()
    line = answer_lines(said)[2]
    assert "candidate 7 (schedules/candidate-7.yaml)" in line
    assert "10.500 ms, the best 11.000 ms" in line
    said["robustness"] = None
    assert "draws=0" in answer_lines(said)[2]


def test_each_listed_tie_says_in_which_knobs_it_differs_from_the_best() -> None:
    said = payload()
    best, other = said["best"], said["recommended"] | {"knobs": {"a": 0.75, "b": 2}}
    third = other | {"name": "candidate 9", "knobs": {"a": 0.5, "b": "late"}}
    said["tie_set"] = [other, best, third]
    assert list(tie_lines(said)) == [
        "candidate 7, recommended, unlike the best: a 0.75",
        "candidate 9, unlike the best: a 0.5, b late",
    ]


def test_a_baseline_is_faster_only_by_a_share_that_shows() -> None:
    best = payload()["best"]
    baselines = [
        {"name": name, "tpot_ms": ms}
        for name, ms in (("slow", 10.1), ("alike", 9.9951), ("fast", 9.8))
    ]
    assert list(outside_lines(baselines, best)) == [
        "outside this space, baseline fast is 2.0% faster"
    ]


@pytest.mark.parametrize("upset", [False, True])
def test_explanations_name_costs_bounds_measurements_and_upsets(upset: bool) -> None:
    said = payload()
    if upset:
        said["explain"]["would_change_the_winner"] = [
            {
                "parameter": "q_us",
                "at": 3.0,
                "unit": "us",
                "knobs_changed": {"b": 4},
                "gain": 0.02,
            }
        ]
    worth, bounds, decides, last = explain_lines(said)
    assert worth.endswith("a 1 +0.500 ms; c x cannot be put back; nothing: b 2")
    assert bounds == "main stream of one ffn die: wait 60%, latency 40%"
    assert decides.startswith("measure p_us of matmul, add: decides between best and candidate 7")
    wins = "with q_us at 3 us b 4 wins by 2.0%"
    assert last == (wins if upset else last)
    assert upset or last.startswith("no parameter alone")
