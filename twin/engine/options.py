"""Options of an engine: what the hardware model leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

UnfinishedPrefetch = Literal["continues", "stops"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a step is simulated.

    ``contention=False`` gives every body the full rate of every shared resource, as if it
    were alone: an optimistic run, for bounds and for seeing what sharing costs.
    ``unfinished_prefetch`` says what becomes of a prefetch whose weight is read before all
    of it has arrived: it ``continues`` (and blocks its queue) or ``stops``.
    """

    contention: bool = True
    unfinished_prefetch: UnfinishedPrefetch = "continues"


DEFAULT_OPTIONS = EngineOptions()
