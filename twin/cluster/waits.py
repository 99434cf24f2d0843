"""Who waits for whom: the time that dies sit in collectives before their slowest member."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from twin.cluster.build import Cluster, group_size
from twin.engine.compiled.layout import NONE, Records
from twin.graph.step_graph import Op
from twin.names import parse_name

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWait:
    """One collective of the layers, or outside them, over all of a step.

    ``wait_us`` is what a die waits in it for the last member, summed over the step and
    averaged over dies; ``longest_us`` the longest single wait.  ``work_us`` is the rest of
    the time in it.  ``slowest_rank`` came last most often (``slowest_share`` of the times).
    ``waited_for`` is the op that most often made the last one late: of the ops on its stream
    from the previous meeting on, the one whose time (waits before it included) exceeds the
    group's mean most.  The previous meeting itself is named where it had already ended late.
    """

    op: str
    wait_us: float
    longest_us: float
    work_us: float
    slowest_rank: str
    slowest_share: float
    waited_for: str


@dataclass(slots=True)
class _Tally:
    dies: int = 0
    wait_us: float = 0.0
    work_us: float = 0.0
    longest_us: float = 0.0
    slowest: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)


class WaitCounter:
    """Adds up the waits of samples of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._samples = 0
        self._tallies: dict[str, _Tally] = defaultdict(_Tally)
        groups = cluster.flat.arrays.ops["group"].reshape(cluster.copies, -1)
        queues: dict[tuple[int, str], list[Op]] = defaultdict(list)
        before: dict[int, list[Op]] = {}
        for op in cluster.template.ops:
            queue = queues[op.die, op.stream]
            if group_size(op) > 1:
                before[op.index] = list(queue)
                queue.clear()
            queue.append(op)
        # Ops of one name on several dies of the template meet in the same groups.
        members: dict[tuple[str, bool], list[Op]] = defaultdict(list)
        for op in cluster.template.ops:
            if group_size(op) > 1:
                members[op.name, op.die < cluster.attention_dies].append(op)
        self._meetings = [
            _Meeting(cluster, ops, before, np.stack([groups[:, op.index] for op in ops], axis=1))
            for ops in members.values()
        ]

    def add(self, records: Records) -> None:
        """Count one sample's records, [copy, op]."""
        self._samples += 1
        for meeting in self._meetings:
            meeting.add(records, self._tallies[meeting.local])

    def waits(self) -> list[CollectiveWait]:
        """Per op without its layer, the longest wait first; means over the samples."""
        found = []
        for name, tally in self._tallies.items():
            rank, times = tally.slowest.most_common(1)[0]
            per_die = tally.dies * self._samples
            found.append(
                CollectiveWait(
                    op=name,
                    wait_us=tally.wait_us / per_die,
                    longest_us=tally.longest_us,
                    work_us=tally.work_us / per_die,
                    slowest_rank=rank,
                    slowest_share=times / tally.slowest.total(),
                    waited_for=tally.causes.most_common(1)[0][0],
                )
            )
        return sorted(found, key=lambda wait: -wait.wait_us)


class _Meeting:
    """One collective op of the template, on all copies: [copy, die of the template]."""

    def __init__(
        self,
        cluster: Cluster,
        ops: Sequence[Op],
        before: Mapping[int, Sequence[Op]],
        groups: npt.NDArray[np.int32],
    ) -> None:
        self.name = ops[0].name
        self.local = parse_name(self.name).local
        self._ops = [op.index for op in ops]
        self._before = [[other.index for other in before[op.index]] for op in ops]
        self._causes = [parse_name(other.name).local for other in before[ops[0].index]]
        assert (groups != NONE).all()
        _, flat = np.unique(groups, return_inverse=True)
        self._groups = flat.reshape(groups.shape)
        self._count = int(flat.max()) + 1
        self._ranks = [
            cluster.rank_name(copy, op.die) for copy in range(cluster.copies) for op in ops
        ]

    def add(self, records: Records, tally: _Tally) -> None:
        end, body = records["end_us"][:, self._ops], records["body_us"][:, self._ops]
        arrived = end - body
        groups = self._groups.reshape(-1)
        last = np.full(self._count, -np.inf)
        np.maximum.at(last, groups, arrived.reshape(-1))
        wait = last[self._groups] - arrived
        tally.dies = wait.size
        tally.wait_us += float(wait.sum())
        tally.work_us += float((end - records["start_us"][:, self._ops] - wait).sum())
        tally.longest_us = max(tally.longest_us, float(wait.max()))
        late = self._late(arrived.reshape(-1), groups)
        spent = self._spent(records, arrived)
        mean = np.zeros((self._count, spent.shape[1]))
        np.add.at(mean, groups, spent)
        mean /= np.bincount(groups)[:, None]
        for group, member in enumerate(late):
            tally.slowest[self._ranks[member]] += 1
            excess = spent[member] - mean[group]
            at = int(excess.argmax())
            own = at == len(self._causes)
            tally.causes[self.local if own else self._causes[at]] += 1

    def _late(self, arrived: Floats, groups: npt.NDArray[np.intp]) -> list[int]:
        """The member of each group that came last; the first of those that came together."""
        order = np.lexsort((np.arange(len(arrived)), -arrived, groups))
        firsts = np.searchsorted(groups[order], np.arange(self._count))
        return [int(member) for member in order[firsts]]

    def _spent(self, records: Records, arrived: Floats) -> Floats:
        """[member, op from the last meeting on, and the way to here]: time on the stream."""
        columns = []
        for at, before in enumerate(self._before):
            ends = [records["end_us"][:, i] for i in before]
            # The first column is how late the last meeting ended, with whomever it was.
            ends = [np.zeros(len(arrived)), *ends, arrived[:, at]]
            columns.append(np.diff(np.stack(ends, axis=1), axis=1))
        return np.asarray(np.stack(columns, axis=1).reshape(arrived.size, -1))
