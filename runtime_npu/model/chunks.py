"""Chunks of a prefill's rows: how many go through the experts at once, and what ops are called."""

from __future__ import annotations


def chunks(rows: int, most: int | None) -> list[tuple[str, int]]:
    """``rows`` rows in chunks of at most ``most`` (``None``: all at once): label and size of each.

    The label goes into the names of the chunk's ops: ``.chunk0``, or nothing where there is one.
    """
    if most is None or rows <= most:
        return [("", rows)]
    sizes = [min(most, rows - start) for start in range(0, rows, most)]
    return [(f".chunk{number}", size) for number, size in enumerate(sizes)]
