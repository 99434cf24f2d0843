"""`python -m runtime_npu.dryrun`: what the hardware would be told of a step.

The real torch_npu and torchair lower the step of one rank, or torch_npu launches it where it is
eager; stand-ins take the place of CANN.  The lowered ops are compared with the step graph, and
so is what the model issued.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hardware_models.errors import InputError, TwinError
from hardware_models.hardware import load_hardware
from runtime_npu.lower.check import all_differences
from runtime_npu.lower.listing import TITLE, listing, outside_and_first
from runtime_npu.lower.lowered import LoweredOp
from runtime_npu.machine.environment import BUFFER
from runtime_npu.npu.check import check_deployment
from runtime_npu.parallel.groups import place_of
from runtime_npu.plan import check_supported
from runtime_npu.record import OpRecord
from runtime_npu.standins.process import run_on_standins
from twin.cli import run as run_command
from twin.graph.build import build_step_graph
from twin.graph.shapes import step_shapes
from twin.memory import dispatch_buffer_mib
from twin.models import load_model
from twin.results import write_result, write_text, write_timing
from twin.schedule import Schedule
from twin.schedule_io import load_schedule, save_schedule
from twin.validate import validate_schedule

COMMAND = "runtime_npu.dryrun"
Mode = Literal["eager", "ge_graph", "npugraph_ex"]


class DifferenceError(TwinError):
    """The lowered graph is not what the schedule and the step graph say."""


class LoweringError(TwinError):
    """The lowering itself failed: our own fault, or a limit of torchair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryrunOptions:
    """What a dry run takes; see ``--help``."""

    schedule: str
    mode: Mode | None = None
    rank: int = 0
    layers: int | None = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DryRun:
    """The lowered ops, and where they or the record differ from the step graph.

    ``kinds`` are those of the step graph's ops, by name; ``left_out`` the scopes of the schedule
    as given that the asked-for mode does not know; ``buffer_mib`` what dispatch and combine need
    of HCCL's buffer.
    """

    schedule: Schedule
    left_out: tuple[str, ...]
    buffer_mib: int | None
    lowered: tuple[LoweredOp, ...]
    kinds: Mapping[str, str]
    differences: tuple[str, ...]


def dry_run(options: DryrunOptions, folder: Path) -> DryRun:
    """Lower the step of one rank in a process of its own, and compare it.

    Raises:
        InputError: a schedule that breaks a rule, that is not lowered, or whose tensors a
            contract of an op refuses; HCCL_BUFFSIZE is set, and too small.
        MachineError: the wheel, gcc or torch is missing.
    """
    schedule = load_schedule(options.schedule)
    deployment = schedule.deployment
    left_out: tuple[str, ...] = ()
    if options.mode not in (None, deployment.graph_mode):
        deployment = dataclasses.replace(deployment, graph_mode=options.mode)
        # The twin's rules know them in ge_graph alone.
        left_out = schedule.super_kernel
        schedule = dataclasses.replace(schedule, deployment=deployment, super_kernel=())
    model = load_model(schedule.model)
    layers = model.num_layers if options.layers is None else options.layers
    if not 1 <= layers <= model.num_layers:
        raise InputError("layers", layers, f"1 to {model.num_layers}, those of {model.name}")
    spec = dataclasses.replace(model, num_layers=layers)
    hardware = load_hardware(deployment.hardware)
    validate_schedule(schedule, model, hardware)
    check_supported(schedule, options.schedule)
    check_deployment(schedule, options.schedule)
    buffer_mib = None
    if not schedule.workload.is_prefill:
        buffer_mib = dispatch_buffer_mib(step_shapes(schedule, model), hardware)
        given = os.environ.get(BUFFER)
        if given is not None and not (given.isdecimal() and int(given) >= buffer_mib):
            raise InputError(BUFFER, given, f"whole MB, at least {buffer_mib} for this schedule")
    if not 0 <= options.rank < deployment.total_dies:
        raise InputError("rank", options.rank, f"0 to {deployment.total_dies - 1}")
    lowered, records = _lower(schedule, options.rank, layers, folder)
    graph = build_step_graph(schedule, spec, hardware)
    found = all_differences(lowered, records, graph, deployment, options.rank)
    kinds = {op.name: op.kind for op in graph.ops}
    return DryRun(schedule, left_out, buffer_mib, tuple(lowered), kinds, found)


def _lower(
    schedule: Schedule, rank: int, layers: int, folder: Path
) -> tuple[list[LoweredOp], list[OpRecord]]:
    file, answer = folder / "schedule.yaml", folder / "lowered.json"
    save_schedule(schedule, file)
    answer.unlink(missing_ok=True)
    request = {"schedule": str(file), "rank": rank, "layers": layers, "answer": str(answer)}
    done = run_on_standins("runtime_npu.lower.child", [json.dumps(request)])
    write_text(folder / "lowering.log", done.stdout + done.stderr)
    if done.returncode != 0 or not answer.exists():
        last = [line for line in done.stderr.splitlines() if "Error" in line][-1:]
        raise LoweringError(f"lowering failed: {''.join(last)} (see {folder}/lowering.log)")
    said = json.loads(answer.read_text("utf-8"))
    answer.unlink()
    if "refused" in said:
        raise InputError(*said["refused"])
    lowered = [
        LoweredOp(**{**op, **_tuples(op, "calls", "glue", "waits", "shape", "races")})
        for op in said["lowered"]
    ]
    records = [OpRecord(**{**record, **_tuples(record, "waits")}) for record in said["records"]]
    return lowered, records


def _tuples(item: dict[str, list[Any]], *names: str) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(item[name]) for name in names}


def main(options: DryrunOptions, folder: Path) -> None:
    """Lower, print and write the result files.

    Raises:
        DifferenceError: the lowered graph differs from the step graph.
    """
    start = time.perf_counter()
    result = dry_run(options, folder)
    print("\n".join(listing(outside_and_first(result.lowered))))
    write_text(folder / "listing.txt", "\n".join((*listing(result.lowered), "")))
    if result.left_out:
        mode, scopes = result.schedule.deployment.graph_mode, ", ".join(result.left_out)
        print(f"left out, because {mode} has no SuperKernel scopes: {scopes}")
    if result.buffer_mib is not None:
        print(f"needs {BUFFER}={result.buffer_mib} or more on every rank")
    for difference in result.differences:
        print(f"differs: {difference}")
    if not result.differences:
        print(f"{TITLE}: {len(result.lowered)} ops, no difference to the step graph")
    write_result(folder, COMMAND, options.seed, _payload(options, result))
    write_timing(folder, time.perf_counter() - start, {})
    print(f"wrote {folder}/result.json, listing.txt, lowering.log, schedule.yaml and timing.json")
    if result.differences:
        raise DifferenceError("\n".join(("lowered otherwise than planned:", *result.differences)))


def _payload(options: DryrunOptions, result: DryRun) -> dict[str, object]:
    ops = []
    for op in result.lowered:
        keys = dataclasses.asdict(op)
        name = keys.pop("name")
        ops.append({"name": name, "kind": result.kinds.get(name), **keys})
    return {
        "title": TITLE,
        "mode": result.schedule.deployment.graph_mode,
        "rank": options.rank,
        "role": place_of(result.schedule.deployment, options.rank).role,
        "left_out": list(result.left_out),
        "hccl_buffsize_mib": result.buffer_mib,
        "ops": ops,
        "differences": list(result.differences),
    }


if __name__ == "__main__":
    sys.exit(run_command("dryrun", DryrunOptions, main))
