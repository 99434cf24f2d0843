"""Small profiler files in the forms of several generations, written by the tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, object]

OLD = (
    "Step Id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "Accelerator Core",
    "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim",
    "HF32 Eligible", "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes",
    "Output Data Types", "Output Formats", "Context ID",
)  # fmt: skip
NEW = (
    "Step Id", "Device_id", *OLD[1:6], "OP State", *OLD[6:10], "Block Num", "Mix Block Num",
    *OLD[12:], "aicore_time(us)", "aic_mac_ratio", "aic_mte2_ratio", "cube_utilization(%)",
)  # fmt: skip
LEVEL0 = (
    "Step Id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)",
    "Wait Time(us)", "Block Dim",
)  # fmt: skip
SUMMARY = tuple(
    {
        "Name": "Op Name", "Type": "OP Type", "Accelerator Core": "Task Type",
        "Start Time(us)": "Task Start Time(us)", "Duration(us)": "Task Duration(us)",
        "Wait Time(us)": "Task Wait Time(us)",
    }.get(name, name)
    for name in OLD
)  # fmt: skip
GENERATIONS = {"old": OLD, "new": NEW, "level0": LEVEL0, "op_summary": SUMMARY}
BASE_US = 1_736_408_883_704_643

_SYNONYMS = (
    ("Block Dim", "Block Num"), ("Mix Block Dim", "Mix Block Num"), ("Name", "Op Name"),
    ("Type", "OP Type"), ("Accelerator Core", "Task Type"),
    ("Start Time(us)", "Task Start Time(us)"), ("Duration(us)", "Task Duration(us)"),
    ("Wait Time(us)", "Task Wait Time(us)"),
)  # fmt: skip


def kernel(at_us: float, duration_us: object, type_: str = "Cast", **more: object) -> Row:
    """A row by the old column names; what is not given is N/A."""
    return {
        "Step Id": 7,
        "Stream ID": 2,
        "Name": f"aclnn{type_}",
        "Type": type_,
        "Accelerator Core": "AI_VECTOR_CORE",
        "Start Time(us)": f"{BASE_US + int(at_us)}.{round(at_us % 1 * 1000):03d}\t",
        "Duration(us)": duration_us,
        "Wait Time(us)": 0,
        "Block Dim": 8,
        "Input Shapes": '"32,128"',
        "Input Data Types": "DT_BF16",
        "Input Formats": "ND",
        **more,
    }


def collective(at_us: float, duration_us: float, name: str = "hcom_allReduce__1_0_1") -> Row:
    """The span of a collective."""
    kind = name.partition("__")[0] + "_"
    return kernel(
        at_us,
        duration_us,
        kind,
        **{"Name": name, "Stream ID": "N/A", "Accelerator Core": "COMMUNICATION",
           "Block Dim": 0, "Input Shapes": "N/A"},
    )  # fmt: skip


def write_kernels(path: Path, rows: Sequence[Row], header: Sequence[str] = NEW) -> Path:
    """A kernel table under the header of a generation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in rows:
            named = dict(row)
            for old, new in _SYNONYMS:
                named.setdefault(new, named.get(old, "N/A"))
            writer.writerow([named.get(name, "N/A") for name in header])
    return path


def rank_folder(root: Path, rank: int, rows: Sequence[Row], header: Sequence[str] = NEW) -> Path:
    """A rank's folder as torch_npu.profiler writes it; gives the output folder in it."""
    folder = root / f"host_{rank}_ascend_pt"
    output = folder / "ASCEND_PROFILER_OUTPUT"
    write_kernels(output / "kernel_details.csv", rows, header)
    (folder / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank}))
    return output
