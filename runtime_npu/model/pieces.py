"""Chains of ops cut into pieces, so that several micro-batches can be issued in turn."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

R = TypeVar("R")
Pieces = Generator[None, None, R]
"""Issues a chain's ops; pauses at the end of each piece, and returns the chain's result."""


def in_turn(chains: Sequence[Pieces[R]]) -> list[R]:
    """Run all ``chains`` to their ends, a piece of each in turn; their results."""
    results: dict[int, R] = {}
    while len(results) < len(chains):
        for number, chain in enumerate(chains):
            if number not in results:
                try:
                    next(chain)
                except StopIteration as end:
                    results[number] = end.value
    return [results[number] for number in range(len(chains))]


def finish(chain: Pieces[R]) -> R:
    """Run one chain to its end without a pause."""
    return in_turn([chain])[0]
