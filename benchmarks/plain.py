"""The compiled engine's loop as plain Python, on the lists and objects that Python is good at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from twin.engine.compiled import Step
from twin.engine.compiled.kernel import run
from twin.engine.compiled.layout import MAKESPAN


class PlainStep:
    """A step whose arrays are lists; only for processes in which numba compiles nothing."""

    def __init__(self, step: Step) -> None:
        self._graph = _plain(step.flat.arrays)
        self._work = _plain(step.work)
        self._skip = _plain(step.skip)
        self._rows_of = [step.flat.row_of.tolist()]
        self._rates = [step.flat.rates.tolist()]

    def run(self) -> None:
        """Run the step as a whole, with contention; prefetches continue."""
        answers = [[0.0, 0.0, 0.0]]
        run(
            self._graph, self._work, self._skip, self._rows_of, self._rates, [0], answers,
            True, False, False,
        )  # fmt: skip

    @property
    def makespan_us(self) -> float:
        """End of the last op that is no prefetch."""
        return float(self._work.totals[MAKESPAN])

    def times(self) -> np.ndarray:
        """[op, 2]: start and end in us."""
        return np.array([(record.start_us, record.end_us) for record in self._work.records])


def _plain(arrays: Any) -> Any:
    """The same named tuple with lists in place of arrays, and objects in place of records."""
    assert isinstance(arrays, tuple)
    return type(arrays)(*(_list(array) for array in arrays))


def _list(array: np.ndarray) -> list[Any]:
    names = array.dtype.names
    if names is None:
        return list(array.tolist())
    return [SimpleNamespace(**dict(zip(names, values, strict=True))) for values in array.tolist()]
