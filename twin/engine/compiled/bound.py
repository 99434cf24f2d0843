"""A lower bound on the step for whole sets of schedules that share a plan.

A set allows every class of ops some rows.  No op of any schedule in the set can take less
than the best of its rows alone on the die, with as much of its weights in L2 as the largest
allowed prefetches bring there.  With these times

- the longest chain of dependencies, streams and launch gaps cannot be shortened;
- under contention, a die cannot move its least bytes (L2 is empty when the step starts, so
  whatever a reader finds there was read from HBM within the step) or hold its least cores in
  less time than its rates and core counts allow.

What a reader finds in L2 is never more than the usable L2 holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twin.engine.compiled.flat import FlatGraph
from twin.engine.compiled.layout import NONE, Floats, Ints, Records
from twin.engine.compiled.path import chain
from twin.engine.fluid import GRID_PER_US

# Every computed time of a run is rounded to the grid, an op's head and its body each; a bound
# stays below all of them, and below the rounding of its own sums.
_GRIDS_PER_OP = 2
_SLACK = 1e-9

Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]

ALWAYS = -1
"""Axis of rows that every set allows."""


@dataclass(frozen=True)
class Option:
    """A row that a class of ops may have where ``level`` of ``axis`` is allowed."""

    klass: int
    row: int
    axis: int
    level: int


class StepBound:
    """Bounds for one graph: what each class may be is read once, then asked for many sets.

    Args:
        flat: the step; an op has a higher index than all it waits for.
        options: at least one for every class; those of axis ``ALWAYS`` are in every set.
        contention: whether shared resources and cores count.
    """

    def __init__(
        self, flat: FlatGraph, options: Sequence[Option], *, contention: bool = True
    ) -> None:
        g = flat.arrays
        self._flat, self._contention = flat, contention
        self._klass = np.array([o.klass for o in options], np.int32)
        self._axis = np.array([o.axis for o in options], np.int32)
        self._level = np.array([o.level for o in options], np.int32)
        numbers = np.array([o.row for o in options], np.int32)
        self._rows: Records = g.rows[numbers]
        self._reads = _Reads.of(flat, self._klass, numbers)
        ops = g.ops[g.ops["fills"] == NONE]
        self._counts = np.zeros((flat.dies, len(flat.row_of)))
        np.add.at(self._counts, (g.queue_die[ops["queue"]], ops["klass"]), 1.0)
        self._free_us = np.empty(len(g.ops))
        self._queue_us = np.empty(flat.queues)

    def us(self, allowed: Sequence[Sequence[int]]) -> float:
        """No schedule with ``allowed`` levels of each axis has a shorter step than this."""
        chosen = self._axis == ALWAYS
        for axis, levels in enumerate(allowed):
            chosen |= (self._axis == axis) & np.isin(self._level, levels)
        body_us = self._body_us(chosen)
        rows, klass = self._rows[chosen], self._klass[chosen]
        busy_us = self._least(klass, rows["head_us"] + body_us[chosen])
        gap_us = self._least(klass, rows["gap_us"])
        chain(self._flat.arrays, gap_us, busy_us, self._free_us, self._queue_us)
        bound_us = float(self._queue_us.max(initial=0.0))
        if self._contention:
            bound_us = max(bound_us, self._resource_us(rows, klass, body_us[chosen]))
        rounded_us = _GRIDS_PER_OP * len(self._free_us) / GRID_PER_US
        return max(bound_us * (1.0 - _SLACK) - rounded_us, 0.0)

    def _body_us(self, chosen: Mask) -> Floats:
        """Least time of each option's body alone, with the most in L2 that ``chosen`` allows."""
        rows, rates = self._rows, self._flat.rates
        fill = np.zeros(len(self._flat.row_of))
        np.maximum.at(fill, self._klass[chosen], rows["fill_bytes"][chosen])
        resident = np.minimum(self._reads.resident(fill, len(rows)), rates[5])
        asked = rows["asked"]
        from_hbm = np.maximum(asked - resident, 0.0)
        hbm_cap, l2_cap = rows["hbm_cap"], rows["l2_cap"]
        with np.errstate(divide="ignore", invalid="ignore"):
            all_hbm_us = np.where(hbm_cap > 0.0, asked / hbm_cap, 0.0)
            most_l2_us = np.where(hbm_cap > 0.0, from_hbm / hbm_cap, 0.0)
            most_l2_us += np.where((l2_cap > 0.0) & (resident > 0.0), resident / l2_cap, 0.0)
        parts = (
            rows["private_us"],
            # Linear in what lies in L2: least at one of its ends.
            np.minimum(all_hbm_us, most_l2_us),
            from_hbm / rates[0],
            asked / rates[1],
            rows["sdma"] / rates[2],
            rows["link"] / rates[3],
        )
        return np.asarray(np.max(parts, axis=0))

    def _resource_us(self, rows: Records, klass: Ints, body_us: Floats) -> float:
        """The busiest die's longest total over its shared rates and its cores."""
        rates, limits = self._flat.rates, self._flat.arrays.limits
        held_us = rows["head_us"] + body_us
        totals = (
            rows["asked"] / rates[0],
            rows["sdma"] / rates[2],
            rows["link"] / rates[3],
            held_us * rows["aic"] / max(int(limits[0]), 1),
            held_us * rows["aiv"] / max(int(limits[1]), 1),
        )
        return max(
            float((self._counts @ self._least(klass, total)).max(initial=0.0)) for total in totals
        )

    def _least(self, klass: Ints, values: Floats) -> Floats:
        """The least of the values of each class; 0 where a class has none."""
        least = np.full(len(self._flat.row_of), np.inf)
        np.minimum.at(least, klass, values)
        return np.where(np.isinf(least), 0.0, least)


@dataclass(frozen=True)
class _Reads:
    """Which options read weights that some prefetch brings: an item for each such read."""

    option: Longs
    place: Longs
    bytes: Floats
    fillers: Floats
    """[place, class]: how many ops of the class prefetch what is read at that place, at most."""

    @classmethod
    def of(cls, flat: FlatGraph, klass_of_option: Ints, row_of_option: Ints) -> _Reads:
        g = flat.arrays
        fillers: dict[int, Counter[int]] = {}
        readers: dict[tuple[int, int], Counter[int]] = {}
        reads = np.zeros(len(flat.row_of), np.int32)
        reads[klass_of_option] = g.rows["reads"][row_of_option]
        for op in g.ops[g.ops["fills"] != NONE]:
            fillers.setdefault(int(op["fills"]), Counter())[int(op["klass"])] += 1
        for op in g.ops[(g.ops["fills"] == NONE) & (reads[g.ops["klass"]] > 0)]:
            for k in range(int(reads[op["klass"]])):
                weight = int(g.read_weight[int(op["first_read"]) + k])
                # The most that any op of the class can find, op by op of those that prefetch.
                readers.setdefault((int(op["klass"]), k), Counter())
                readers[int(op["klass"]), k] |= fillers.get(weight, Counter())
        places = {key: at for at, key in enumerate(key for key, by in readers.items() if by)}
        matrix = np.zeros((len(places), len(flat.row_of)))
        for key, at in places.items():
            for klass, times in readers[key].items():
                matrix[at, klass] = times
        found = [
            (option, place, float(g.read_bytes[int(g.rows["first_bytes"][row]) + k]))
            for option, (klass, row) in enumerate(
                zip(klass_of_option.tolist(), row_of_option.tolist(), strict=True)
            )
            for k in range(int(g.rows["reads"][row]))
            if (place := places.get((klass, k))) is not None
        ]
        return cls(
            np.array([option for option, _, _ in found], np.int64),
            np.array([place for _, place, _ in found], np.int64),
            np.array([size for _, _, size in found], np.float64),
            matrix,
        )

    def resident(self, fill_bytes: Floats, options: int) -> Floats:
        """The most bytes of its weights that each option can find in L2."""
        there = (self.fillers @ fill_bytes)[self.place]
        resident = np.zeros(options)
        np.add.at(resident, self.option, np.minimum(self.bytes, there))
        return resident
