"""Reading kernel_details.csv and op_summary.csv, whichever columns a generation wrote.

Source of the columns: profiles of CANN 7 to 8.3 and newer; ``Block Dim`` became ``Block Num``,
``Device_id`` and ``OP State`` came later, Level0 has eight columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from calibration.profiles.skipped import Skips
from calibration.profiles.table import ProfileTable, Row, RowError, moments_from
from calibration.profiles.tensors import Tensor, parse_tensors

MOST_BLOCKS = 65_535
"""CANN's limit on the blocks of a launch."""

COMMUNICATION_CORES = ("HCCL", "COMMUNICATION")

_COUNTERS = (
    "aicore_time(us)", "aic_total_cycles", "aic_mac_ratio", "aic_scalar_ratio", "aic_mte1_ratio",
    "aic_mte2_ratio", "aic_fixpipe_ratio", "aiv_time(us)", "aiv_total_cycles", "aiv_vec_ratio",
    "aiv_scalar_ratio", "aiv_mte2_ratio", "aiv_mte3_ratio", "cube_utilization(%)",
)  # fmt: skip
_TENSOR_COLUMNS = ("Shapes", "Data Types", "Formats")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One row: a launch on a core of the die, or a collective's span.

    ``start_us`` counts from the origin of the rank's profile.  ``step`` is the step's number as
    text, empty where the profile has none.  ``type`` is empty at Level0.  ``cores`` is what the
    launch asked for (Block Dim, Block Num), ``mixed_cores`` of the other core type; None where
    not recorded.  ``counters`` holds the performance counters that were recorded by column.
    ``by_vector_cores`` marks a collective's span that a kernel on vector cores carries out.
    """

    line: int
    name: str
    type: str
    core: str
    stream: str
    step: str
    device: int | None
    start_us: float
    duration_us: float
    wait_us: float
    cores: int | None
    mixed_cores: int | None
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    counters: Mapping[str, float]
    by_vector_cores: bool = False

    @property
    def end_us(self) -> float:
        """When it ended, from the same origin as ``start_us``."""
        return self.start_us + self.duration_us

    @property
    def is_communication(self) -> bool:
        """Whether the row is the span of a collective, which runs on no core of its own."""
        return self.core in COMMUNICATION_CORES


@dataclass(frozen=True, slots=True)
class KernelFile:
    """All kernels of a file in its order, and the time of day (us) that their starts count from."""

    kernels: tuple[Kernel, ...]
    origin_us: int


class _Columns:
    """Where a table keeps what, over all generations of headers."""

    def __init__(self, table: ProfileTable) -> None:
        self.name = table.needed("Name", "Op Name")
        self.start = table.needed("Start Time(us)", "Task Start Time(us)")
        self.duration = table.needed("Duration(us)", "Task Duration(us)")
        self.wait = table.column("Wait Time(us)", "Task Wait Time(us)")
        self.type = table.column("Type", "OP Type", "Op Type")
        self.core = table.column("Accelerator Core", "Task Type")
        self.step = table.column("Step Id", "Step ID")
        self.device = table.column("Device_id", "Device Id", "Device ID")
        self.stream = table.column("Stream ID", "Stream Id")
        self.blocks = table.column("Block Dim", "Block Num")
        self.mixed = table.column("Mix Block Dim", "Mix Block Num")
        self.inputs = [table.column(f"Input {part}") for part in _TENSOR_COLUMNS]
        self.outputs = [table.column(f"Output {part}") for part in _TENSOR_COLUMNS]
        found = ((name, table.column(name)) for name in _COUNTERS)
        self.counters = [(name, index) for name, index in found if index is not None]


def read_kernels(path: Path, skips: Skips) -> KernelFile:
    """Read a kernel table; rows that cannot be trusted are counted in ``skips``.

    Raises:
        InputError: the file cannot be read, or lacks the name, start or duration column.
    """
    table = ProfileTable(path, skips)
    columns = _Columns(table)
    kernels: list[Kernel] = []
    moments: list[Decimal] = []
    for row in table.rows():
        try:
            kernel, moment = _kernel(row, columns)
        except RowError as error:
            table.skip(row, str(error))
        else:
            kernels.append(kernel)
            moments.append(moment)
    origin_us, starts = moments_from(moments)
    placed = (replace(k, start_us=start) for k, start in zip(kernels, starts, strict=True))
    return KernelFile(tuple(placed), origin_us)


def _kernel(row: Row, columns: _Columns) -> tuple[Kernel, Decimal]:
    moment = row.moment_us(columns.start, "the start")
    wait_us = row.number(columns.wait, "the wait")
    counters = {}
    for name, index in columns.counters:
        value = row.number(index, name)
        if value is not None:
            counters[name] = value
    kernel = Kernel(
        line=row.line,
        name=row.text(columns.name),
        type=row.text(columns.type),
        core=row.text(columns.core),
        stream=row.text(columns.stream),
        step=row.text(columns.step),
        device=row.count(columns.device, "the device", 1 << 31),
        start_us=0.0,
        duration_us=row.time_us(columns.duration, "the duration"),
        wait_us=wait_us or 0.0,
        cores=row.count(columns.blocks, "the number of blocks", MOST_BLOCKS),
        mixed_cores=row.count(columns.mixed, "the number of mixed blocks", MOST_BLOCKS),
        inputs=_tensors(row, columns.inputs),
        outputs=_tensors(row, columns.outputs),
        counters=counters,
    )
    return kernel, moment


def _tensors(row: Row, columns: list[int | None]) -> tuple[Tensor, ...]:
    shapes, dtypes, formats = (row.text(index) for index in columns)
    try:
        return parse_tensors(shapes, dtypes, formats)
    except ValueError as error:
        raise RowError(str(error)) from None
