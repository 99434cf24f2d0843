"""A run as the folders that Ascend's profiler writes, one a die, marked as simulated or measured.

The layout and columns are those of torch_npu.profiler on CANN 8.3 (Level1 without performance
counters: the twin has no cycles to count).  Times count from zero.  ``simulated.json`` (of a run
on this machine ``measured.json``) marks a folder and gives what the format has no place for:
streams by number, and the twin's names of collectives.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware_models.errors import InputError
from hardware_models.ops import Combine, Dispatch, MlaDecodeAttention
from twin.engine.timeline import OpRecord, Timeline
from twin.graph.step_graph import Die, Op, StepGraph
from twin.report.ascend_launches import (
    FIRST_STREAM,
    STEP,
    CollectiveNames,
    Launch,
    decimal,
    launches_of,
    on_cores,
)
from twin.report.ascend_matrix import communication_matrix, communicator
from twin.report.ascend_rows import (
    KernelText,
    Operands,
    blocks,
    core_type,
    is_kernel,
    kernel_text,
)
from twin.report.ascend_trace import Origin, ascend_events
from twin.report.spans import Span, common, length_us, union
from twin.report.trace import in_display_order
from twin.results import write_json, write_text

_HEADER = (
    "Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State",
    "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim",
    "Mix Block Dim", "HF32 Eligible", "Input Shapes", "Input Data Types", "Input Formats",
    "Output Shapes", "Output Data Types", "Output Formats", "Context ID",
)  # fmt: skip
_MODEL_ID = "4294967295"
_CARRIERS = ("SDMA", "HCCS", "RDMA", "PCIE", "SIO")


def check_export(folder: str) -> None:
    """Refuse a folder in which a profile would mix with what is there.

    Raises:
        InputError: it is no folder, cannot be read, or is not empty.
    """
    try:
        clear = not os.listdir(folder)
    except FileNotFoundError:
        clear = bool(folder)
    except (OSError, ValueError):
        clear = False
    if not clear:
        raise InputError("export", folder, "the path of a new or empty folder")


def write_ascend(
    folder: Path,
    graph: StepGraph,
    timeline: Timeline,
    about: dict[str, object],
) -> Path:
    """Write a simulated rank's folder for every die of the graph; ``about`` goes into the marks.

    Raises:
        InputError: a file cannot be written.
    """
    writer = AscendWriter(folder, "simulated")
    records = dict(enumerate(timeline.records))
    for die in graph.dies:
        ops = [op for op in graph.ops if op.die == die.index]
        rank = sum(other.role == die.role for other in graph.dies[: graph.dies.index(die)])
        writer.write(die, rank, ops, records, about)
    return folder


class AscendWriter:
    """Writes ranks' folders one by one; the members of a collective share its name over them."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self._folder = folder
        self._origin: Origin = origin
        self._names = CollectiveNames()

    def write(
        self,
        die: Die,
        rank: int,
        ops: Sequence[Op],
        records: Mapping[int, OpRecord],
        about: Mapping[str, object],
    ) -> None:
        """Write the folder of a die, whose ``ops`` have these records by their index.

        ``rank`` is its number among the dies of its role; ``about`` goes into the marks.

        Raises:
            InputError: a file cannot be written.
        """
        origin, number = self._origin, die.index
        streams = in_display_order(op.stream for op in ops)
        launches = launches_of(ops, records, streams, self._names)
        top = self._folder / f"die{number}_{origin}_ascend_pt"
        output = top / "ASCEND_PROFILER_OUTPUT"
        mark = {origin: True, **about, "die": number, "role": die.role, **_not_in_rows(ops)}
        write_json(top / f"profiler_info_{number}.json", {"rank_id": number, **mark})
        write_json(top / "profiler_metadata.json", mark)
        extra = {
            "streams": {str(FIRST_STREAM + i): name for i, name in enumerate(streams)},
            "collectives": {x.collective: x.op.name for x in launches if x.collective},
        }
        write_json(output / f"{origin}.json", {**mark, **extra})
        write_text(output / "kernel_details.csv", _kernel_details(launches))
        write_text(output / "op_statistic.csv", _op_statistic(launches))
        write_text(output / "step_trace_time.csv", _step_trace(launches))
        write_json(output / "communication.json", _communication(launches, die.role, rank))
        matrix = communication_matrix(launches, die.role, rank)
        write_json(output / "communication_matrix.json", matrix)
        events = ascend_events(launches, number, streams, origin)
        write_json(output / "trace_view.json", events, indent=None)


def _not_in_rows(ops: Sequence[Op]) -> dict[str, object]:
    """KV tokens of a sequence and EP, which no kernel row says; 0 where no op has any."""
    specs = [op.spec for op in ops]
    return {
        "kv_tokens": next((x.kv_tokens for x in specs if isinstance(x, MlaDecodeAttention)), 0),
        "ep": next((x.ep for x in specs if isinstance(x, Dispatch | Combine)), 0),
    }


def _kernel_details(launches: Sequence[Launch]) -> str:
    rows: list[Sequence[object]] = [_HEADER]
    for launch in launches:
        if launch.collective:
            rows.append(_span_row(launch))
        if on_cores(launch):
            rows.append(_kernel_row(launch, _text(launch)))
    return _table(rows)


def _text(launch: Launch) -> KernelText:
    """A collective on cores is carried by a kernel of its own."""
    if launch.collective:
        return KernelText(f"{launch.collective.partition('__')[0]}_AivKernel")
    return kernel_text(launch.op.spec)


def _kernel_row(launch: Launch, text: KernelText) -> Sequence[object]:
    op, record = launch.op, launch.record
    return (
        STEP, op.die, _MODEL_ID, op.index, launch.stream, op.name, text.type, "static",
        core_type(op.cores), f"{decimal(record.start_us)}\t", decimal(launch.duration_us),
        decimal(launch.wait_us), *blocks(op.cores), "NO",
        *_operands(text.inputs, text.nz), *_operands(text.outputs), "N/A",
    )  # fmt: skip


def _span_row(launch: Launch) -> Sequence[object]:
    title = launch.collective.partition("__")[0] + "_"
    return (
        STEP, launch.op.die, _MODEL_ID, "N/A", "N/A", launch.collective, title, "N/A",
        "COMMUNICATION", f"{decimal(launch.record.start_us)}\t", decimal(launch.duration_us),
        decimal(launch.wait_us), 0, *["N/A"] * 9,
    )  # fmt: skip


def _operands(operands: Operands, nz: Sequence[int] = ()) -> tuple[str, str, str]:
    if not operands:
        return "N/A", "N/A", "N/A"
    shapes = ";".join(",".join(str(size) for size in shape) for shape, _ in operands)
    formats = ";".join(
        ("FRACTAL_NZ" if number in nz else "ND") if shape else ""
        for number, (shape, _) in enumerate(operands)
    )
    return f'"{shapes}"', ";".join(dtype for _, dtype in operands), formats


def _op_statistic(launches: Sequence[Launch]) -> str:
    """Kernels on cores by type, the longest first, as the profiler adds them up."""
    groups: dict[tuple[str, str], list[float]] = {}
    for launch in launches:
        if on_cores(launch):
            key = (_text(launch).type, core_type(launch.op.cores))
            groups.setdefault(key, []).append(launch.duration_us)
    whole = sum(sum(times) for times in groups.values())
    die = launches[0].op.die if launches else 0
    header = ("Device_id", "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)",
              "Avg Time(us)", "Max Time(us)", "Ratio(%)")  # fmt: skip
    rows: list[Sequence[object]] = [header]
    for (type_, core), times in sorted(groups.items(), key=lambda item: -sum(item[1])):
        total = sum(times)
        figures = (total, min(times), total / len(times), max(times))
        ratio = f"{100 * total / whole:.3f}" if whole else "0"
        rows.append((die, type_, core, len(times), *(f"{x:.3f}" for x in figures), ratio))
    return _table(rows)


def _step_trace(launches: Sequence[Launch]) -> str:
    """Where the step's time went: computing, communication that nothing hid, idle."""
    kernels = [x for x in launches if is_kernel(x.op.spec)]
    moving = union(_span(x) for x in kernels if x.collective)
    computing = union(_span(x) for x in kernels if not x.collective)
    overlapped = length_us(common(moving, computing))
    exposed = length_us(moving) - overlapped
    whole = max((x.record.end_us for x in kernels), default=0.0)
    free = max(0.0, whole - length_us(computing) - exposed)
    header = ("Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped",
              "Communication", "Free", "Stage", "Bubble",
              "Communication(Not Overlapped and Exclude Receive)", "Preparing")  # fmt: skip
    die = launches[0].op.die if launches else 0
    times = (length_us(computing), exposed, overlapped, length_us(moving), free)
    row = (die, STEP, *(decimal(x) for x in times), decimal(whole), 0, decimal(exposed), 0)
    return _table([header, row])


def _span(launch: Launch) -> Span:
    return launch.record.start_us, launch.record.end_us


def _communication(launches: Sequence[Launch], role: str, rank: int) -> dict[str, object]:
    """Collectives by name, and under ``Total Op Info`` the sum over each kind."""
    kinds: dict[str, dict[str, object]] = {"p2p": {}, "collective": {}}
    for kind, entries in kinds.items():
        chosen = [x for x in launches if x.collective and _is_p2p(x) == (kind == "p2p")]
        moves = [_Moved.of(launch) for launch in chosen]
        for launch, moved in zip(chosen, moves, strict=True):
            name = f"{launch.collective}@{communicator(launch.op, role, rank)}"
            entries[name] = moved.entry(launch.record.start_us)
        total = sum(moves, _Moved(0.0, 0.0, 0.0, 0.0))
        entries["Total Op Info"] = total.entry(None)
    return {f"step{STEP}": kinds}


def _is_p2p(launch: Launch) -> bool:
    return launch.collective.startswith(("hcom_send", "hcom_receive"))


@dataclass(frozen=True, slots=True)
class _Moved:
    """What a collective, or several, did: times in ms, bytes in MB."""

    elapsed: float
    waited: float
    transit: float
    size_mb: float

    @classmethod
    def of(cls, launch: Launch) -> _Moved:
        """First it waits for the other members, then it moves; the rest is its head."""
        record, demand = launch.record, launch.op.demand
        return cls(
            launch.duration_us / 1e3,
            record.peer_wait_us / 1e3,
            max(0.0, record.body_us - record.peer_wait_us) / 1e3,
            (demand.link_bytes or demand.sdma_bytes) / 1e6,
        )

    def __add__(self, other: _Moved) -> _Moved:
        return _Moved(
            self.elapsed + other.elapsed,
            self.waited + other.waited,
            self.transit + other.transit,
            self.size_mb + other.size_mb,
        )

    def entry(self, start_us: float | None) -> dict[str, object]:
        """The entry of communication.json; a sum has no start."""
        busy = self.waited + self.transit
        share = self.waited / busy if busy else 0.0
        moved: dict[str, object] = {
            "Transit Size(MB)": self.size_mb,
            "Transit Time(ms)": self.transit,
            # MB / ms is GB/s.
            "Bandwidth(GB/s)": self.size_mb / self.transit if self.transit else 0.0,
            "Large Packet Ratio": 0,
            "Size Distribution": {},
        }
        nothing: dict[str, object] = {key: {} if key == "Size Distribution" else 0 for key in moved}
        start = {} if start_us is None else {"Start Timestamp(us)": start_us}
        return {
            "Communication Time Info": {
                **start,
                "Elapse Time(ms)": self.elapsed,
                "Transit Time(ms)": self.transit,
                "Wait Time(ms)": self.waited,
                "Synchronization Time(ms)": self.waited,
                "Idle Time(ms)": max(0.0, self.elapsed - busy),
                "Wait Time Ratio": share,
                "Synchronization Time Ratio": share,
            },
            "Communication Bandwidth Info": {
                name: moved if name in ("SDMA", "HCCS") else nothing for name in _CARRIERS
            },
        }


def _table(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()
