"""The shape of a spec as numbers, and whether it lies inside of what was fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from hardware_models.demand import OpSpec
from hardware_models.fitted import ShapeRanges, Span


def kind_of(spec: OpSpec) -> str:
    """The kind under which a spec's rows are fitted: a row op's own name, else the class's."""
    return str(getattr(spec, "op", spec.kind)) if spec.kind == "row_op" else spec.kind


def numbers(spec: OpSpec) -> dict[str, float]:
    """The numeric fields of a spec: its shape."""
    values = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return {n: float(v) for n, v in values.items() if type(v) in (int, float)}


def ranges_of(
    specs: Sequence[OpSpec], known: ShapeRanges | None = None
) -> dict[str, dict[str, Span]]:
    """Smallest and largest value of each numeric field over the specs of each kind.

    What is ``known`` already is widened.
    """
    found = {kind: dict(spans) for kind, spans in (known or {}).items()}
    for spec in specs:
        spans = found.setdefault(kind_of(spec), {})
        for name, value in numbers(spec).items():
            low, high = spans.get(name, (value, value))
            spans[name] = (min(low, value), max(high, value))
    return found


def is_inside(spec: OpSpec, ranges: ShapeRanges) -> bool:
    """Whether every number of the shape lies between the smallest and largest fitted one."""
    spans = ranges.get(kind_of(spec), {})
    return bool(spans) and all(
        name in spans and spans[name][0] <= value <= spans[name][1]
        for name, value in numbers(spec).items()
    )
