"""Does contention decide?  The same space searched as if no two ops shared anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twin.choices import Level
from twin.engine.options import EngineOptions
from twin.evaluate import latencies
from twin.search.pool import Workers
from twin.search.space import Space
from twin.search.sweep import Explorer, sweep

ALONE = EngineOptions(contention=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionCheck:
    """What a search without contention would have chosen; latencies in us.

    ``winner_alone_us`` is the winner's latency without contention.  The optimum without
    contention has the knobs ``choice`` and the latency ``alone_us``, with contention
    ``contended_us``.  ``changes`` where the winner lies above that optimum by more than the
    tie tolerance.  ``proven`` where no candidate was left open.
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
    # Without ties more is pruned: only the first of the fastest is asked for.
    swept = sweep(Explorer(space, 0.0, ALONE), workers, folder, budget)
    first = min(swept.points, key=lambda point: (point.latency_us, point.index))
    (winner_us,) = latencies(space.schedule(winner), space.model, [space.hardware], ALONE)
    (contended_us,) = latencies(space.schedule(first.index), space.model, [space.hardware])
    return ContentionCheck(
        changes=winner_us > first.latency_us * (1 + tolerance),
        choice=space.choice(first.index),
        alone_us=first.latency_us,
        contended_us=contended_us,
        winner_alone_us=winner_us,
        proven=swept.open == 0,
    )
