"""The compiled engine: the rules of the reference engine on flat arrays, through numba.

:func:`simulate` runs one graph.  :class:`Step` runs a flattened graph often, and
:class:`twin.engine.compiled.plan.Plan` schedules that differ only in numbers.
"""

from twin.engine.compiled.engine import Skipped, Step, simulate, warm_up
from twin.engine.compiled.flat import FlatGraph, flatten

__all__ = ["FlatGraph", "Skipped", "Step", "flatten", "simulate", "warm_up"]
