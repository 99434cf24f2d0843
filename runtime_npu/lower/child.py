"""Run on the stand-ins: lower a rank's step and say what it became, as JSON.

:mod:`runtime_npu.dryrun` starts it, with one JSON argument: ``schedule`` (its YAML file's
path), ``rank``, ``layers`` and ``answer`` (the file to write).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib import import_module
from pathlib import Path

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from runtime_npu.backends.npu_issue import Listener
from runtime_npu.lower.captured import lower_captured
from runtime_npu.lower.eager import launch_eager
from runtime_npu.lower.ge import lower_ge
from runtime_npu.lower.lowered import LoweredOp
from runtime_npu.lower.step import pretend_world, rank_step
from runtime_npu.npu.pass_trace import graph_order, trace_pass, tracing_mode
from runtime_npu.record import OpRecord
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule


def lower(
    schedule: Schedule, spec: ModelSpec, rank: int
) -> tuple[list[LoweredOp], tuple[OpRecord, ...]]:
    """The ops of the main pass and of each MTP pass, and the record of what was issued.

    Raises:
        InputError: a contract of an op refuses a tensor.
    """
    hardware = load_hardware(schedule.deployment.hardware)
    if schedule.deployment.graph_mode == "eager":
        return launch_eager(schedule, spec, hardware, rank)
    pretend_world(schedule.deployment.total_dies, rank)
    mode, graph_mode = tracing_mode(), schedule.deployment.graph_mode
    order = graph_order(graph_mode, hardware)
    step = rank_step(schedule, spec, order, rank, mode, Listener())
    lower_one = lower_ge if graph_mode == "ge_graph" else lower_captured
    lowered: list[LoweredOp] = []
    records: list[OpRecord] = []
    for one in step.passes:
        traced, issued = trace_pass(
            one.name, one.run, one.given, step.backend, hardware, graph_mode, mode
        )
        lowered += lower_one(traced, mode)
        records += issued
    return lowered, tuple(records)


def main(request: str) -> None:
    """Answer one request; a refusal is an answer too."""
    asked = json.loads(request)
    import_module("torch_npu")
    schedule = load_schedule(asked["schedule"])
    spec = dataclasses.replace(load_model(schedule.model), num_layers=asked["layers"])
    answer: dict[str, object]
    try:
        lowered, records = lower(schedule, spec, asked["rank"])
    except InputError as error:
        answer = {"refused": [error.field, str(error.value), error.allowed]}
    else:
        answer = {
            "lowered": [dataclasses.asdict(op) for op in lowered],
            "records": [dataclasses.asdict(record) for record in records],
        }
    Path(asked["answer"]).write_text(json.dumps(answer), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
