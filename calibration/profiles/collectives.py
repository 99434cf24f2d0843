"""Collectives over the ranks of a profile: members, bytes, who came last, their own time."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from calibration.profiles.communication import CollectiveRecord, read_communication
from calibration.profiles.folder import RankFiles
from calibration.profiles.json_values import load_json
from calibration.profiles.skipped import Skips
from hardware_models.errors import InputError

# Handshakes take about 20 us: a fifth of this.
_LONG_TRANSIT_US = 100.0
_UNACCOUNTED = 0.1

_LINK = re.compile(r"(\d{1,9})-(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Collectives:
    """By the name of a collective's row: dies, 1e6 bytes a die, the rank that came last.

    ``own_us`` is its time without the wait for other ranks, where the profile tells it.
    """

    dies: Mapping[str, int]
    moved_mb: Mapping[str, float]
    last_rank: Mapping[str, int]
    own_us: Mapping[str, float]


def collectives_of(files: Iterable[RankFiles]) -> Collectives:
    """From every rank's communication.json and communication_matrix.json.

    The last rank is known where several took part; their clocks are taken as one, which
    holds within a node and across nodes as far as they are synchronised.

    Raises:
        InputError: a file is no JSON.
    """
    records: dict[str, dict[int, CollectiveRecord]] = {}
    members: dict[str, set[str]] = {}
    for rank in files:
        if matrix := rank.file("communication_matrix.json"):
            for group, ends in members_of(matrix).items():
                members.setdefault(group, set()).update(ends)
        path = rank.file("communication.json")
        for record in read_communication(path, Skips()) if path else ():
            records.setdefault(record.name, {})[rank.rank] = record
    dies = {
        name: max(len(ranks), *(len(members.get(x.group, ())) for x in ranks.values()))
        for name, ranks in records.items()
    }
    known = {name: _own_us(ranks, dies[name]) for name, ranks in records.items()}
    return Collectives(
        dies=dies,
        moved_mb={name: max(x.moved_mb for x in ranks.values()) for name, ranks in records.items()},
        last_rank={
            name: max(ranks, key=lambda rank: ranks[rank].start_us)
            for name, ranks in records.items()
            if len(ranks) > 1
        },
        own_us={name: own_us for name, own_us in known.items() if own_us is not None},
    )


def _own_us(ranks: Mapping[int, CollectiveRecord], dies: int) -> float | None:
    """As the ranks recorded it; else, where all members are there, that of the last to come."""
    if told := [us for record in ranks.values() if (us := _told_us(record))]:
        return statistics.median(told)
    if len(ranks) < dies or dies < 2:
        return None
    return min(x.elapsed_us for x in ranks.values()) or None


def _told_us(record: CollectiveRecord) -> float | None:
    """Time without waits where nothing else is unaccounted for, or a long transit.

    A transit holds no handshakes: beside a short one they take longer, and profilers do not
    record it of every kind of collective.
    """
    if record.idle_us <= _UNACCOUNTED * record.transit_us:
        return record.elapsed_us - record.wait_us
    return record.transit_us if record.transit_us >= _LONG_TRANSIT_US else None


def members_of(path: Path) -> dict[str, set[str]]:
    """Dies of each communicator (the number behind ``@``) in a communication_matrix.json.

    All links of a communicator, over all of its collectives, name its members; one collective
    alone may use some of them only.

    Raises:
        InputError: the file cannot be read, is no JSON, or is no object of steps.
    """
    data = load_json(path)
    if not isinstance(data, dict):
        allowed = "an object of steps"
        raise InputError("communication_matrix", type(data).__name__, allowed, f"{path}:1")
    found: dict[str, set[str]] = {}
    for kinds in _objects(data.values()):
        for ops in _objects(kinds.values()):
            for name, links in ops.items():
                ends = found.setdefault(str(name).rpartition("@")[2], set())
                for link in links if isinstance(links, dict) else ():
                    if match := _LINK.fullmatch(str(link)):
                        ends.update(match.groups())
    return found


def _objects(values: Iterable[object]) -> list[dict[object, object]]:
    return [value for value in values if isinstance(value, dict)]
