"""The compiled engine: the rules of the reference engine on flat arrays, through numba."""

from twin.engine.compiled.engine import Step, simulate
from twin.engine.compiled.flat import FlatGraph, flatten

__all__ = ["FlatGraph", "Step", "flatten", "simulate"]
