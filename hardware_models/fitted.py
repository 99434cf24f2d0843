"""What a fit leaves in a parameter file besides the numbers: correlations and fitted shapes.

Both blocks are optional:

    correlations:
      - parameters: [attention_fixed_us, attention_cube_efficiency]
        lower: [[1], [0.8, 1]]
    fitted_shapes:
      matmul: {m: [1, 41040], k: [512, 7168]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_models.errors import InputError

Span = tuple[float, float]
ShapeRanges = Mapping[str, Mapping[str, Span]]
"""Smallest and largest fitted value of each numeric field of a spec, by kind."""

# Rounding to four digits may push the smallest eigenvalue of a correlation matrix below zero.
_ROUNDING = 1e-2


@dataclass(frozen=True, slots=True)
class Correlation:
    """How the errors of parameters that were fitted together hang together.

    ``lower`` holds the rows of the correlation matrix up to its diagonal of ones.
    """

    parameters: tuple[str, ...]
    lower: tuple[tuple[float, ...], ...]

    def matrix(self) -> list[list[float]]:
        """The whole symmetric matrix."""
        n = len(self.parameters)
        return [[self.lower[max(i, j)][min(i, j)] for j in range(n)] for i in range(n)]


def parse_correlations(
    data: object, known: Mapping[str, object], source: str
) -> tuple[Correlation, ...]:
    """The block ``correlations``.

    Raises:
        InputError: not such a list, a parameter that is unknown or there twice, rows that are
            no lower triangle with a diagonal of ones, or no correlation matrix.
    """
    if not isinstance(data, list):
        raise InputError("correlations", data, "a list of groups", source)
    seen: set[str] = set()
    groups = []
    for i, item in enumerate(data):
        where = f"correlations.{i}"
        if not isinstance(item, dict) or set(item) != {"parameters", "lower"}:
            raise InputError(where, item, "exactly the keys parameters, lower", source)
        names, rows = item["parameters"], item["lower"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{where}.parameters", names, "a list of names", source)
        for name in names:
            if name not in known or name in seen:
                raise InputError(
                    f"{where}.parameters", name, "a parameter of the file, in one group", source
                )
            seen.add(name)
        if not _is_triangle(rows, len(names)):
            raise InputError(
                f"{where}.lower", rows, f"{len(names)} rows of 1 to {len(names)} numbers from -1 "
                "to 1, each ending in 1", source,
            )  # fmt: skip
        group = Correlation(tuple(names), tuple(tuple(float(x) for x in row) for row in rows))
        if names and float(np.linalg.eigvalsh(group.matrix())[0]) < -_ROUNDING:
            raise InputError(f"{where}.lower", rows, "a positive semidefinite matrix", source)
        groups.append(group)
    return tuple(groups)


def _is_triangle(rows: object, size: int) -> bool:
    return (
        isinstance(rows, list)
        and len(rows) == size
        and all(
            isinstance(row, list)
            and len(row) == i + 1
            and all(type(x) in (int, float) and -1 <= x <= 1 for x in row)
            and row[-1] == 1
            for i, row in enumerate(rows)
        )
    )


def parse_shapes(data: object, source: str) -> dict[str, dict[str, Span]]:
    """The block ``fitted_shapes``.

    Raises:
        InputError: not a mapping of kinds to fields to [low, high].
    """
    if not isinstance(data, dict):
        raise InputError("fitted_shapes", data, "a mapping of kinds", source)
    ranges: dict[str, dict[str, Span]] = {}
    for kind, spans in data.items():
        if not isinstance(spans, dict):
            raise InputError(f"fitted_shapes.{kind}", spans, "a mapping of fields", source)
        for name, span in spans.items():
            good = isinstance(span, list) and len(span) == 2
            if not (good and all(type(x) in (int, float) for x in span) and span[0] <= span[1]):
                raise InputError(f"fitted_shapes.{kind}.{name}", span, "[low, high]", source)
        ranges[str(kind)] = {str(n): (float(s[0]), float(s[1])) for n, s in spans.items()}
    return ranges


def render_blocks(correlations: Sequence[Correlation], shapes: ShapeRanges) -> str:
    """Both blocks as YAML text, empty ones left out."""
    lines = ["correlations:"] if correlations else []
    for group in correlations:
        rows = ", ".join("[" + ", ".join(f"{x:.4g}" for x in row) + "]" for row in group.lower)
        lines.append(f"  - parameters: [{', '.join(group.parameters)}]")
        lines.append(f"    lower: [{rows}]")
    lines += ["fitted_shapes:"] if shapes else []
    for kind, spans in sorted(shapes.items()):
        inner = ", ".join(f"{n}: [{low:.10g}, {high:.10g}]" for n, (low, high) in spans.items())
        lines.append(f"  {kind}: {{{inner}}}")
    return "".join(f"{line}\n" for line in lines)
