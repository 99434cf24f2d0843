"""MTP: from which acceptance on one or two drafts pay, and what they cost below it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twin.plan.config import Layout
from twin.plan.inner import Best, fastest, nearest
from twin.plan.outcome import Outcome
from twin.plan.setting import Setting
from twin.report.chart import Chart, Series, Value, line_chart
from twin.search.feasible import Rejection
from twin.search.space import Space
from twin.uncertainty import Array, quantiles
from twin.validate.workload import MOST_DRAFTS
from twin.workload import Workload, accepted_of, chance_of

DRAFTS = tuple(range(1, MOST_DRAFTS + 1))


@dataclass(frozen=True)
class _Case:
    """One batch and layout: the fastest schedule for each number of drafts, 0 first."""

    batch: int
    layout: Layout
    found: Mapping[int, Best | Rejection]

    def name(self, drafts: int) -> str:
        """Name of a schedule's file."""
        return f"mtp-{self.layout}-batch-{self.batch}-next-{drafts}"

    @property
    def best(self) -> dict[int, Best]:
        """The numbers of drafts that can run, none where the step without drafts cannot."""
        running = {n: it for n, it in self.found.items() if isinstance(it, Best)}
        return running if 0 in running else {}

    def why(self, drafts: int) -> Rejection | None:
        """What keeps ``drafts`` from running."""
        found = self.found[drafts]
        return found if isinstance(found, Rejection) else None


def run_mtp(setting: Setting) -> Outcome:
    """The break-even of every batch, layout and number of drafts."""
    chance = _chance(setting)
    cases = _searched(setting, chance)
    named = {case.name(n): best for case in cases for n, best in case.best.items()}
    confirmed = setting.confirmed(named)
    steps_us = {
        name: confirmed[name].latency_us * best.schedule.workload.tokens_per_step
        for name, best in named.items()
    }
    rows = [_listed(case, n, steps_us, chance) for case in cases for n in DRAFTS]
    broken = [why for case in cases for n in case.found if (why := case.why(n)) is not None]
    return Outcome(
        payload={
            "chance_of_a_draft": chance,
            "rows": rows,
            "schedules": {name: each.entry for name, each in confirmed.items()},
        },
        title="Accepted drafts a step from which MTP pays",
        lines=_lines(chance),
        columns=[
            "batch",
            "layout",
            "drafts",
            "step ms",
            "without ms",
            "pays above",
            "80%",
            "as chance",
            "beats one less",
            "costs at 0",
            "TPOT as expected",
            "draws it pays in",
            "verdict",
        ],
        cells=[_cells(row) for row in rows],
        charts=_charts(rows),
        nothing=None if any("verdict" in row for row in rows) else nearest(broken).detail,
    )


def _chance(setting: Setting) -> float | None:
    """The chance of a draft behind the workload's acceptance; ``None`` without drafts."""
    (workload, *_) = [space.base.workload for space in setting.spaces.values()]
    return chance_of(workload.acceptance, workload.next_n) if workload.next_n else None


def _workload(base: Workload, drafts: int, batch: int, chance: float | None) -> Workload:
    accepted = 0.0 if chance is None else accepted_of(chance, drafts)
    return replace(base, global_batch=batch, next_n=drafts, acceptance=accepted)


def _searched(setting: Setting, chance: float | None) -> list[_Case]:
    asked = [
        (batch, layout, drafts)
        for batch in setting.config.batches
        for layout in setting.config.layouts
        for drafts in (0, *DRAFTS)
    ]

    def space(batch: int, layout: Layout, drafts: int) -> Space:
        searched = setting.spaces[layout]
        workload = _workload(searched.base.workload, drafts, batch, chance)
        return replace(searched, base=replace(searched.base, workload=workload))

    found = setting.map("searching", fastest, [space(*each) for each in asked])
    results = dict(zip(asked, found, strict=True))
    return [
        _Case(batch, layout, {n: results[batch, layout, n] for n in (0, *DRAFTS)})
        for batch, layout, drafts in asked
        if drafts == 0
    ]


def _listed(
    case: _Case, drafts: int, steps_us: Mapping[str, Array], chance: float | None
) -> dict[str, Any]:
    """A row of the result; where a step cannot run, only why."""
    row: dict[str, Any] = {"batch": case.batch, "layout": case.layout, "next_n": drafts}
    why = case.why(0) or case.why(drafts)
    if why is not None:
        return {**row, "infeasible": why.reason, "detail": why.detail}
    # The die itself comes first, then its variants.
    step, plain = steps_us[case.name(drafts)], steps_us[case.name(0)]
    fewer = steps_us.get(case.name(drafts - 1))
    even = step / plain - 1
    low, _, high = quantiles(even[1:])
    at = float(even[0])
    expected = None if chance is None else accepted_of(chance, drafts)
    return {
        **row,
        "schedule": f"schedules/{case.name(drafts)}.yaml",
        "plain_schedule": f"schedules/{case.name(0)}.yaml",
        "step_ms": float(step[0]) / 1e3,
        "plain_step_ms": float(plain[0]) / 1e3,
        "break_even_accepted": at,
        "interval": [min(low, at), max(high, at)],
        "break_even_chance": _possible(chance_of(at, drafts)),
        "chance_to_beat_one_draft_less": None
        if drafts < 2 or fewer is None
        else _possible(last_draft_chance(float(step[0] / fewer[0]))),
        "verdict": _verdict(at, drafts),
        "cost_below": {"accepted": 0.0, "tpot": at, "ms": float(step[0] - plain[0]) / 1e3},
        "expected_accepted": expected,
        "expected_tpot": None if expected is None else (1 + at) / (1 + expected) - 1,
        "share_of_draws_in_which_it_pays": None
        if expected is None
        else float(np.mean(even[1:] < expected)),
    }


def last_draft_chance(longer: float) -> float:
    """Chance of a draft above which the second pays, its step ``longer`` times that of one.

    Per token the steps cost the same where (1 + p + p^2) / (1 + p) is ``longer``.
    """
    more = max(longer - 1, 0.0)
    return (more + math.sqrt(more * more + 4 * more)) / 2


def _possible(chance: float) -> float | None:
    return chance if chance <= 1 else None


def _verdict(accepted: float, drafts: int) -> str:
    if accepted <= 0:
        return "always pays"
    if accepted >= drafts:
        return "never pays"
    return f"pays above {accepted:.2f} of {drafts} accepted"


def _lines(chance: float | None) -> list[str]:
    lines = [
        "A step with drafts pays where it costs less per accepted token than a step without: "
        "where 1 + accepted drafts exceeds the ratio of the steps.  Each step is the fastest of "
        "its space.",
        "As chance: of each draft, accepted with the same chance where all before it were; "
        "beats one less: the chance above which the last draft pays by itself.",
    ]
    if chance is not None:
        lines.append(f"Expected: a chance of {chance:.0%}, as the workload's acceptance implies.")
    return lines


def _cells(row: Mapping[str, Any]) -> list[str]:
    head = [str(row["batch"]), row["layout"], str(row["next_n"])]
    if "detail" in row:
        return [*head, *["-"] * 9, row["detail"]]
    chances = (row["break_even_chance"], row["chance_to_beat_one_draft_less"])
    expected, share = row["expected_tpot"], row["share_of_draws_in_which_it_pays"]
    low, high = row["interval"]
    return [
        *head,
        f"{row['step_ms']:.2f}",
        f"{row['plain_step_ms']:.2f}",
        f"{row['break_even_accepted']:.3f}",
        f"{low:.3f} .. {high:.3f}",
        *("-" if chance is None else f"{chance:.0%}" for chance in chances),
        f"{row['cost_below']['tpot']:+.1%}",
        "-" if expected is None else f"{expected:+.1%}",
        "-" if share is None else f"{share:.0%}",
        row["verdict"],
    ]


def _charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    shown = [row for row in rows if "detail" not in row]
    kinds = dict.fromkeys((row["layout"], row["next_n"]) for row in shown)
    series = [
        Series(
            f"{layout}, {drafts} draft(s)",
            [
                Value(str(row["batch"]), row["break_even_accepted"], *row["interval"])
                for row in shown
                if (row["layout"], row["next_n"]) == (layout, drafts)
            ],
        )
        for layout, drafts in kinds
    ]
    chart = line_chart("accepted drafts a step from which MTP pays", "sequences", series)
    return [] if chart is None else [chart]
