"""Does contention decide?  The same space searched as if no two ops shared anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twin.choices import Level
from twin.engine.options import EngineOptions
from twin.evaluate import latencies
from twin.search.explorer import Explorer
from twin.search.pool import Workers
from twin.search.space import Space
from twin.search.sweep import sweep

# Keeps a candidate whose bound is its own latency to rounding.
_ROUNDING = 1e-9

ALONE = EngineOptions(contention=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionCheck:
    """What a search without contention would have chosen; latencies in us.

    The optimum without contention has the knobs ``choice`` and the latency ``alone_us``; with
    contention ``contended_us``.  ``changes`` where it then no longer ties with the winner, which
    without contention takes ``winner_alone_us``.  ``proven`` where no candidate was left open.
    """

    changes: bool
    choice: Mapping[str, Level]
    alone_us: float
    contended_us: float
    winner_alone_us: float
    proven: bool


def check_contention(
    space: Space, winner: int, tolerance: float, workers: Workers, folder: Path, budget: int
) -> ContentionCheck:
    """Search ``space`` without contention and set its optimum beside ``winner``, an index.

    Raises:
        InputError: the run folder cannot be written or read.
    """
    (alone,) = latencies(space.schedule(winner), space.model, [space.hardware], ALONE)
    # Without ties more is pruned: only the first of the fastest is asked for.
    swept = sweep(Explorer(space, _ROUNDING, ALONE), workers, folder, budget)
    known = [(point.latency_us, point.index) for point in swept.points]
    alone_us, first = min([*known, (alone, winner)])
    if alone <= alone_us * (1 + _ROUNDING):
        alone_us, first = alone, winner
    schedules = [space.schedule(index) for index in (winner, first)]
    best_us, contended_us = (latencies(it, space.model, [space.hardware])[0] for it in schedules)
    return ContentionCheck(
        changes=contended_us > best_us * (1 + tolerance),
        choice=space.choice(first),
        alone_us=alone_us,
        contended_us=contended_us,
        winner_alone_us=alone,
        proven=swept.open == 0,
    )
