"""Reading communication.json: every collective's elapsed, waiting and moving time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from calibration.profiles.json_values import load_json, number
from calibration.profiles.skipped import Skips
from hardware_models.errors import InputError

TOTAL = "Total Op Info"
"""The profiler's own sum over a step's collectives: counting it too would double them."""

_TIMES = {
    "elapsed_us": "Elapse Time(ms)",
    "transit_us": "Transit Time(ms)",
    "wait_us": "Wait Time(ms)",
    "synchronisation_us": "Synchronization Time(ms)",
    "idle_us": "Idle Time(ms)",
}
# SDMA sums up what HCCS, PCIE and SIO moved: counting both would double the bytes.
_CARRIERS = ("SDMA", "RDMA")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One collective on one rank.

    ``name`` is that of its kernel row, ``group`` the communicator's number as text.  ``moved_mb``
    are the bytes (1e6) that this rank moved over SDMA and RDMA.
    """

    step: str
    name: str
    group: str
    start_us: float
    elapsed_us: float
    transit_us: float
    wait_us: float
    synchronisation_us: float
    idle_us: float
    moved_mb: float


def read_communication(path: Path, skips: Skips) -> tuple[CollectiveRecord, ...]:
    """Records of all steps in file order; one that cannot be trusted is counted in ``skips``.

    Raises:
        InputError: the file cannot be read, is no JSON, or is no object of steps.
    """
    data = load_json(path)
    if not isinstance(data, dict):
        raise InputError("communication", type(data).__name__, "an object of steps", f"{path}:1")
    found = []
    for step, name, entry in _entries(data, path, skips):
        record = _record(step, name, entry)
        if isinstance(record, str):
            # JSON has no lines of its own: profilers write the whole object on one.
            skips.add(path, 1, f"a collective with {record}")
        else:
            found.append(record)
    return tuple(found)


def _entries(
    data: Mapping[object, object], path: Path, skips: Skips
) -> Iterator[tuple[str, str, Mapping[object, object]]]:
    for step, kinds in data.items():
        if not isinstance(kinds, dict):
            skips.add(path, 1, "a step that is no object")
            continue
        for kind in ("p2p", "collective"):
            ops = kinds.get(kind, {})
            if not isinstance(ops, dict):
                skips.add(path, 1, f"a list of {kind} operations that is no object")
                continue
            for name, entry in ops.items():
                if str(name).partition("@")[0] == TOTAL:
                    continue
                if isinstance(entry, dict):
                    yield str(step).removeprefix("step"), str(name), entry
                else:
                    skips.add(path, 1, "a collective that is no object")


def _record(step: str, name: str, entry: Mapping[object, object]) -> CollectiveRecord | str:
    """The record, or what is wrong with it."""
    info = entry.get("Communication Time Info")
    carriers = entry.get("Communication Bandwidth Info", {})
    if not isinstance(info, dict) or not isinstance(carriers, dict):
        return "no times"
    start = number(info.get("Start Timestamp(us)"))
    times = {field: number(info.get(title)) for field, title in _TIMES.items()}
    moved = 0.0
    for carrier in _CARRIERS:
        entry_ = carriers.get(carrier)
        size = number(entry_.get("Transit Size(MB)", 0)) if isinstance(entry_, dict) else 0.0
        if size is None:
            return "an impossible size"
        moved += size
    if start is None or None in times.values():
        return "an impossible time"
    local, _, group = name.rpartition("@") if "@" in name else (name, "", "")
    known = {field: value * 1e3 for field, value in times.items() if value is not None}
    return CollectiveRecord(
        step=step, name=local, group=group, start_us=start, moved_mb=moved, **known
    )
