"""Where the rows of a pass lie: groups of attention dies, micro-batches, padding.

Attention groups take consecutive sequences, and the micro-batches of a group consecutive
ones of these, as the twin has it.  Dies that exchange rows need equal numbers of them, so
every group is padded to the rows of the fullest one; within a group the rows lie scattered
over its attention_tp dies in equal parts (all of them on every die where kvp is above 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime_npu.plan import PLAIN_PREFILL, PrefillOrder
from twin.deployment import Deployment
from twin.workload import Phase

Row = tuple[int, int]
"""A row of a pass: its sequence, and its number among the sequence's rows in this pass."""


@dataclass(frozen=True, slots=True)
class Part:
    """One micro-batch: ``sequences`` and padded ``rows`` of each attention group.

    Every attention die holds ``height`` rows between attentions.  ``None`` is a padding row.
    """

    sequences: tuple[range, ...]
    rows: tuple[tuple[Row | None, ...], ...]
    height: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch of ``sequences`` on the attention dies of ``deployment``."""

    deployment: Deployment
    sequences: int
    prefill: PrefillOrder = PLAIN_PREFILL

    def group_of(self, die: int) -> int:
        """The attention group of an attention die."""
        return die // self.deployment.attention.group_dies

    def held(self, group: int) -> range:
        """The sequences of an attention group."""
        wide = -(-self.sequences // self.deployment.attention.attention_groups)
        return range(self.sequences)[group * wide : (group + 1) * wide]

    def parts(self, phase: Phase, counts: Sequence[int]) -> tuple[Part, ...]:
        """The micro-batches of a pass with ``counts`` rows of each sequence."""
        afd, role = self.deployment.afd, self.deployment.attention
        number = 1 if afd is None else afd.micro_batches
        is_planned = phase == "prefill" and self.prefill.is_planned
        if phase == "prefill":
            number = self.prefill.micro_batches
        groups = [self.held(group) for group in range(role.attention_groups)]
        base, rest = divmod(len(groups[0]), number)
        parts = []
        start = 0
        for part in range(number):
            stop = start + base + (part < rest)
            sequences = tuple(group[start:stop] for group in groups)
            rows = [[(s, row) for s in own for row in range(counts[s])] for own in sequences]
            most = max(len(own) for own in rows)
            if is_planned:
                most = len(sequences[0]) * max(counts)
            height = max(1, -(-most // role.attention_tp))
            whole = height * role.attention_tp
            padded = tuple((*own, *[None] * (whole - len(own))) for own in rows)
            parts.append(Part(sequences, padded, height))
            start = stop
        return tuple(parts)

    def rows_on(self, die: int, parts: Sequence[Part]) -> list[Row | None]:
        """The rows that an attention die holds between attentions, micro-batch by micro-batch."""
        place = die % self.deployment.attention.attention_tp
        return [
            row
            for part in parts
            for row in part.rows[self.group_of(die)][place * part.height :][: part.height]
        ]


@dataclass(frozen=True, slots=True)
class LastRows:
    """The last rows of each sequence: where they lie, and on which attention dies.

    ``rows[die]`` are indices into the die's rows, padded to the same number on every die with
    row 0; ``owners[die]`` says which rows of the pass they are (``None``: padding).
    """

    rows: tuple[tuple[int, ...], ...]
    owners: tuple[tuple[Row | None, ...], ...]


def last_rows(
    layout: Layout, parts: Sequence[Part], counts: Sequence[int], number: int = 1
) -> LastRows:
    """The rows that make each sequence's next tokens: its last ``number``."""
    dies = range(layout.deployment.attention.dies)
    found = [
        [
            (index, row)
            for index, row in enumerate(layout.rows_on(die, parts))
            if row is not None and row[1] + number >= counts[row[0]]
        ]
        for die in dies
    ]
    width = max(1, *(len(own) for own in found))
    padded = [[*own, *[(0, None)] * (width - len(own))] for own in found]
    return LastRows(
        tuple(tuple(index for index, _ in own) for own in padded),
        tuple(tuple(row for _, row in own) for own in padded),
    )
