"""Rows in parts: chunks of a prefill's, which have names of their own, and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def chunks(rows: int, most: int | None) -> list[tuple[str, int]]:
    """``rows`` rows in chunks of at most ``most`` (``None``: all at once): label and size of each.

    The label goes into the names of the chunk's ops: ``.chunk0``, or nothing where there is one.
    """
    if most is None or rows <= most:
        return [("", rows)]
    sizes = [min(most, rows - start) for start in range(0, rows, most)]
    return [(f".chunk{number}", size) for number, size in enumerate(sizes)]


def split_rows(rows: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """``rows`` [sum of ``sizes``, ...] in parts; one part is the rows themselves.

    A split into one part would be a kernel in ge_graph.
    """
    return (rows,) if len(sizes) == 1 else tuple(torch.split(rows, list(sizes)))
