"""What the hardware would be told of one op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hardware_models.errors import TwinError
from runtime_npu.record import OpRecord

T = TypeVar("T")

WAITED_FOR = "synchronize"
"""The call with which the host holds until a stream has got there."""


@dataclass(frozen=True, slots=True)
class LoweredOp:
    """An op in the lowered graph: ``calls`` are its nodes there, in order.

    ``glue`` are those that bring its result to the next op, and that no step graph has.
    ``aic`` and ``aiv`` are the core limit (``None``: all cores), ``waits`` the ops of other
    streams that its stream waits for before it, ``group`` the ranks that it talks to.
    ``shape`` is that of the first result of its last call, empty where it is not known.
    ``races`` says what its calls, glue too, read on other streams too early or too late.
    """

    name: str
    calls: tuple[str, ...]
    glue: tuple[str, ...]
    stream: str
    aic: int | None
    aiv: int | None
    scope: str | None
    waits: tuple[str, ...]
    prefetch_bytes: int
    group: str | None
    shape: tuple[int, ...]
    races: tuple[str, ...] = ()

    def record(self) -> OpRecord:
        """The same as a record, to be compared with the step graph."""
        return OpRecord(
            self.name,
            "prefetch" if self.prefetch_bytes else "",
            self.stream,
            aic=self.aic,
            aiv=self.aiv,
            scope=self.scope,
            waits=self.waits,
            prefetch_bytes=self.prefetch_bytes,
        )


def ranks_label(ranks: Sequence[int]) -> str:
    """``ranks 0-7``; all groups are consecutive ranks."""
    return f"ranks {ranks[0]}-{ranks[-1]}"


def peer_label(rank: int, ranks: Sequence[int] = ()) -> str:
    """``rank 64``: the other end of a transfer; in which group, where that is no pair's own."""
    return f"rank {rank}" if len(ranks) <= 2 else f"rank {rank} in {ranks_label(ranks)}"


class MixedError(TwinError):
    """Parts of one op were told different things."""


def one(name: str, what: str, values: Iterable[T]) -> T:
    """The one value that all calls of op ``name`` have.

    Raises:
        MixedError: they have several.
    """
    distinct = set(values)
    if len(distinct) != 1:
        raise MixedError(f"{name}: {what} are {sorted(map(str, distinct))}")
    return distinct.pop()


def unplanned(call: str, number: int) -> str:
    """A name for a call that no op of the step made, so that the comparison shows it."""
    return f"unplanned.{number}.{call}"


class Clocks:
    """What each stream knows of the others, to leave out waits that others imply."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}
        self._place: dict[str, tuple[str, int]] = {}
        self._behind: dict[str, dict[str, int]] = {}

    def issue(self, name: str, stream: str, reads: Sequence[str]) -> tuple[str, ...]:
        """The ops among ``reads`` that ``name``, next on ``stream``, must still wait for."""
        known = self._known.setdefault(stream, {})
        needed = []
        # The latest first: it may know of the others.
        for other in sorted(set(reads), key=lambda op: -self._place[op][1]):
            from_stream, place = self._place[other]
            if from_stream == stream or known.get(from_stream, -1) >= place:
                continue
            needed.append(other)
            for seen, last in self._behind[other].items():
                known[seen] = max(known.get(seen, -1), last)
            known[from_stream] = place
        place = len(self._place)
        self._place[name] = (stream, place)
        self._behind[name] = dict(known)
        return tuple(needed)

    def same_stream(self, one: str, other: str) -> bool:
        """Whether both ops were issued on the same stream."""
        return self._place[one][0] == self._place[other][0]
