"""The trace_view.json of a die: processes, threads and texts as profilers write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hardware_models.ops import HostRead
from twin.report.ascend_launches import FIRST_STREAM, STEP, Launch, decimal, on_cores
from twin.report.ascend_rows import core_type, is_kernel
from twin.report.spans import Span, common, gaps, union

Event = dict[str, object]

Origin = Literal["simulated", "measured"]
"""Whether times come from an engine or from a clock of this machine."""

_PROCESSES = ("Python", "CANN", "Ascend Hardware", "HCCL", "Overlap Analysis")
_OVERLAP_ROWS = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")


def ascend_events(
    launches: Sequence[Launch], die: int, streams: Sequence[str], origin: Origin = "simulated"
) -> list[Event]:
    """All events of a die, times as decimal text in us from zero."""
    pids = {name: 10 * die + 1 + number for number, name in enumerate(_PROCESSES)}
    whole = max((x.record.end_us for x in launches), default=0.0)
    events = [_slice(pids["Python"], 0, f"ProfilerStep#{STEP}", 0.0, whole, {})]
    for launch in launches:
        events += _of_launch(launch, pids, origin)
    for row, (name, spans) in enumerate(_overlap(launches).items()):
        events += [
            _slice(pids["Overlap Analysis"], row, name, start, end - start, {})
            for start, end in spans
        ]
    return [*events, *_names(pids, streams, origin)]


def _of_launch(launch: Launch, pids: dict[str, int], origin: Origin) -> list[Event]:
    op, record = launch.op, launch.record
    start, duration = record.start_us, launch.duration_us
    about: dict[str, object] = {
        f"{origin.capitalize()} Op": op.name,
        "Kind": op.kind,
        "Bound": record.bound,
        "Physic Stream Id": launch.stream,
        "Task Id": op.index,
    }
    if op.spec.kind.startswith("host_"):
        call = "AscendCL@aclrtSynchronizeStream" if _is_read(launch) else "Node@launch"
        return [_slice(pids["CANN"], 0, call, start, duration, about)]
    hardware = pids["Ascend Hardware"]
    events = []
    if record.wait_us > 0 and op.deps:
        waited = {"Task Type": "EVENT_WAIT_SQE", "Physic Stream Id": launch.stream}
        before = start - record.wait_us
        events.append(_slice(hardware, launch.stream, "EVENT_WAIT", before, record.wait_us, waited))
    if launch.collective:
        events.append(_slice(pids["HCCL"], 0, launch.collective, start, duration, about))
    if on_cores(launch) or not launch.collective:
        task = core_type(op.cores) if on_cores(launch) else "SDMA_SQE"
        arguments = {"Task Type": task, **about}
        events.append(_slice(hardware, launch.stream, op.name, start, duration, arguments))
    return events


def _is_read(launch: Launch) -> bool:
    return isinstance(launch.op.spec, HostRead)


def _overlap(launches: Sequence[Launch]) -> dict[str, list[Span]]:
    kernels = [x for x in launches if is_kernel(x.op.spec)]
    ends = [(x.record.start_us, x.record.end_us, bool(x.collective)) for x in kernels]
    computing = union((start, end) for start, end, moves in ends if not moves)
    moving = union((start, end) for start, end, moves in ends if moves)
    busy = union([*computing, *moving])
    exposed = common(moving, gaps([(-1.0, 0.0), *computing, (float("inf"), float("inf"))]))
    return dict(zip(_OVERLAP_ROWS, (computing, moving, exposed, gaps(busy)), strict=True))


def _names(pids: dict[str, int], streams: Sequence[str], origin: Origin) -> list[Event]:
    threads = [
        ("Python", 0, "Thread 0"),
        ("CANN", 0, "Thread 0"),
        ("HCCL", 0, "Group 0 Communication"),
        *(("Overlap Analysis", row, name) for row, name in enumerate(_OVERLAP_ROWS)),
        *(
            ("Ascend Hardware", FIRST_STREAM + row, f"Stream {FIRST_STREAM + row}")
            for row in range(len(streams))
        ),
    ]
    events: list[Event] = []
    for order, (name, pid) in enumerate(pids.items()):
        where: Event = {"ph": "M", "pid": pid, "tid": 0}
        events.append({**where, "name": "process_name", "args": {"name": name}})
        events.append({**where, "name": "process_sort_index", "args": {"sort_index": order}})
        labels = f"{origin}, NPU" if name == "Ascend Hardware" else origin
        events.append({**where, "name": "process_labels", "args": {"labels": labels}})
    for process, tid, name in threads:
        where = {"ph": "M", "pid": pids[process], "tid": tid}
        events.append({**where, "name": "thread_name", "args": {"name": name}})
        events.append({**where, "name": "thread_sort_index", "args": {"sort_index": tid}})
    return events


def _slice(
    pid: int, tid: int, name: str, start_us: float, duration_us: float, arguments: dict[str, object]
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": decimal(start_us),
        "dur": duration_us,
        "args": arguments,
    }
