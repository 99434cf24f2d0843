"""AFD or not: colocated against AFD on as many dies, by batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hardware_models.errors import InputError
from twin.plan.config import Layout
from twin.plan.inner import Best, fastest, nearest
from twin.plan.outcome import Outcome
from twin.plan.setting import Confirmed, Setting
from twin.report.chart import Chart, Series, Value, line_chart
from twin.search.changes import with_batch
from twin.search.feasible import Rejection
from twin.search.space import Space
from twin.search.structure import Structure, structural_places
from twin.uncertainty import quantiles

LAYOUTS: tuple[Layout, ...] = ("colocated", "afd")

Verdict = Literal["AFD", "colocated", "undecided"]


@dataclass(frozen=True)
class _Duel:
    """The fastest of either layout at one batch, or why there is none."""

    batch: int
    found: Mapping[Layout, Best | Rejection]

    def name(self, layout: Layout) -> str:
        """Name of a schedule's file."""
        return f"afd-or-not-batch-{self.batch}-{layout}"

    @property
    def gain(self) -> float | None:
        """Share of the colocated TPOT that AFD saves (below 0: costs); ``None`` without both."""
        colocated, afd = (self.found[layout] for layout in LAYOUTS)
        if isinstance(colocated, Best) and isinstance(afd, Best):
            return 1 - afd.latency_us / colocated.latency_us
        return None


def run_afd_or_not(setting: Setting) -> Outcome:
    """Which layout is faster at every batch of the configuration, and where that changes."""
    dies = _equal_dies(setting)
    duels = _fought(setting, setting.config.batches)
    crossovers = [
        _crossover(setting, duels[before], duels[after])
        for before, after in pairwise(sorted(duels))
        if _differ(duels[before], duels[after])
    ]
    best = {
        duel.name(layout): found
        for duel in duels.values()
        for layout, found in duel.found.items()
        if isinstance(found, Best)
    }
    confirmed = setting.confirmed(best)
    rows = [_listed(duels[batch], confirmed) for batch in sorted(duels)]
    broken = [
        it for duel in duels.values() for it in duel.found.values() if not isinstance(it, Best)
    ]
    return Outcome(
        payload={"dies": dies, "crossovers": crossovers, "rows": rows},
        title=f"Colocated or AFD on {dies} dies",
        lines=_lines(rows, crossovers),
        columns=[
            "batch",
            "colocated TPOT ms",
            "AFD TPOT ms",
            "A:F",
            "AFD saves",
            "80%",
            "P(AFD wins)",
            "verdict",
        ],
        cells=[_cells(row) for row in rows],
        charts=_charts(rows),
        nothing=None if best else nearest(broken).detail,
    )


def _equal_dies(setting: Setting) -> int:
    """The dies of both layouts.

    Raises:
        InputError: the bases have different numbers and ``deployment.dies`` names none.
    """
    dies = {
        layout: (*space.dies, space.base.deployment.total_dies)[0]
        for layout, space in setting.spaces.items()
    }
    if len(set(dies.values())) != 1:
        raise InputError("deployment.dies", None, f"one number: the bases have {dies}")
    return dies["afd"]


def _fought(setting: Setting, batches: Sequence[int]) -> dict[int, _Duel]:
    asked = [(batch, layout) for batch in batches for layout in LAYOUTS]
    spaces = [_at(setting.spaces[layout], batch) for batch, layout in asked]
    found = dict(zip(asked, setting.map("searching", fastest, spaces), strict=True))
    return {
        batch: _Duel(batch, {layout: found[batch, layout] for layout in LAYOUTS})
        for batch in batches
    }


def _at(space: Space, batch: int) -> Space:
    return replace(space, base=with_batch(space.base, batch))


def _differ(before: _Duel, after: _Duel) -> bool:
    if before.gain is None or after.gain is None:
        return False
    return (before.gain > 0) != (after.gain > 0)


def _crossover(setting: Setting, before: _Duel, after: _Duel) -> dict[str, object]:
    """The two neighbouring batches between which the faster layout changes.

    Only a batch that gives some die one sequence more changes a TPOT, so batches that fill
    every attention group of some deployment are looked at; halving finds one change.
    """
    full = full_batches(setting.spaces.values(), before.batch, after.batch)
    low, high = before, after
    between = [batch for batch in full if low.batch < batch < high.batch]
    while between:
        middle = _fought(setting, [between[len(between) // 2]])[between[len(between) // 2]]
        low, high = (low, middle) if _differ(low, middle) else (middle, high)
        between = [batch for batch in full if low.batch < batch < high.batch]
    assert high.gain is not None
    return {
        "up_to_batch": low.batch,
        "from_batch": low.batch + 1,
        "faster_from_there": "AFD" if high.gain > 0 else "colocated",
    }


def full_batches(spaces: Iterable[Space], low: int, high: int) -> list[int]:
    """Batches from ``low`` to ``high`` that fill every attention group of a deployment."""
    groups = set()
    for space in spaces:
        for fixed in structural_places(space):
            structure = Structure(space, fixed)
            with suppress(InputError):
                schedule = structure.schedule([0] * len(structure.axes))
                groups.add(schedule.deployment.attention.attention_groups)
    return sorted({n * each for each in groups for n in range(-(-low // each), high // each + 1)})


def _listed(duel: _Duel, confirmed: Mapping[str, Confirmed]) -> dict[str, Any]:
    row: dict[str, Any] = {"batch": duel.batch}
    for layout, found in duel.found.items():
        if isinstance(found, Rejection):
            row[layout] = {"infeasible": found.reason, "detail": found.detail}
        else:
            row[layout] = confirmed[duel.name(layout)].entry
    if duel.gain is None:
        only = [layout for layout, found in duel.found.items() if isinstance(found, Best)]
        return {**row, "verdict": f"only {only[0]}" if only else "neither"}
    colocated, afd = (confirmed[duel.name(layout)].latency_us for layout in LAYOUTS)
    # The die itself comes first, then its variants.
    gains = 1 - afd / colocated
    low, median, high = quantiles(gains[1:])
    low, high = min(low, float(gains[0])), max(high, float(gains[0]))
    verdict: Verdict = "AFD" if low > 0 else "colocated" if high < 0 else "undecided"
    measure = [f"schedules/{duel.name(layout)}.yaml" for layout in LAYOUTS]
    return {
        **row,
        "afd_saves": float(gains[0]),
        "interval": [low, high],
        "median": median,
        "probability_afd_wins": float(np.mean(gains[1:] > 0)),
        "verdict": verdict,
        "measure": measure if verdict == "undecided" else [],
    }


def _lines(
    rows: Sequence[Mapping[str, Any]], crossovers: Sequence[Mapping[str, object]]
) -> list[str]:
    lines = [
        f"Crossover: from {each['from_batch']} sequences on {each['faster_from_there']} is faster."
        for each in crossovers
    ]
    both = [row for row in rows if "afd_saves" in row]
    if both and not crossovers:
        faster = "AFD" if both[0]["afd_saves"] > 0 else "colocated"
        lines.append(f"No crossover among these batches: {faster} is faster at each.")
    lines += [
        f"Undecided at {row['batch']} sequences: measure these two runs: "
        f"{' and '.join(row['measure'])}."
        for row in both
        if row["measure"]
    ]
    return lines


def _cells(row: Mapping[str, Any]) -> list[str]:
    tpots = [
        f"{row[layout]['tpot_ms']:.2f}" if "tpot_ms" in row[layout] else "-" for layout in LAYOUTS
    ]
    ratio = row["afd"].get("knobs", {}).get("ratio")
    head = [str(row["batch"]), *tpots, "-" if ratio is None else f"{ratio:g}:1"]
    if "afd_saves" not in row:
        details = [row[layout]["detail"] for layout in LAYOUTS if "detail" in row[layout]]
        return [*head, "-", "-", "-", f"{row['verdict']}: {'; '.join(details)}"]
    low, high = row["interval"]
    return [
        *head,
        f"{row['afd_saves']:+.1%}",
        f"{low:+.1%} .. {high:+.1%}",
        f"{row['probability_afd_wins']:.0%}",
        row["verdict"],
    ]


def _charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    tpots = [
        Series(
            layout,
            [
                Value(str(row["batch"]), row[layout]["tpot_ms"], *row[layout]["interval"])
                for row in rows
                if "tpot_ms" in row[layout]
            ],
        )
        for layout in LAYOUTS
    ]
    both = [row for row in rows if "afd_saves" in row]
    saves = Series(
        "AFD",
        [
            Value(str(row["batch"]), *(100 * x for x in (row["afd_saves"], *row["interval"])))
            for row in both
        ],
    )
    odds = Series("AFD", [Value(str(row["batch"]), row["probability_afd_wins"]) for row in both])
    charts = [
        line_chart("TPOT, ms", "sequences", tpots),
        line_chart("share of the TPOT that AFD saves, %", "sequences", [saves], (0.0, "")),
        line_chart("probability that AFD wins", "sequences", [odds], (0.5, "even")),
    ]
    return [chart for chart in charts if chart is not None]
