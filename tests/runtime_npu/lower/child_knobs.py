"""Run on the stand-ins: lower all variants of a graph mode, and a model without its join."""

import dataclasses
import json
import sys

import small
import torch_npu  # noqa: F401

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from runtime_npu.backends.base import Backend
from runtime_npu.backends.npu_issue import NpuIssue
from runtime_npu.lower import captured
from runtime_npu.lower.check import all_differences
from runtime_npu.lower.child import lower
from runtime_npu.model import shortcut
from twin.graph.build import build_step_graph
from twin.validate import validate_schedule

mode, path, *names = sys.argv[1:]
hardware = load_hardware("a3-752t")
answers = {}


def answer(name, schedule, rank):
    validate_schedule(schedule, small.SMALL, hardware)
    lowered, records = lower(schedule, small.SMALL, rank)
    graph = build_step_graph(schedule, small.SMALL, hardware)
    found = all_differences(lowered, records, graph, schedule.deployment, rank)
    answers[name] = {
        "ops": [dataclasses.asdict(op) for op in lowered],
        "differences": found,
    }


lengths = set()
make_op = captured._op


def noting(name, launches, *rest):
    for launch in launches:
        given = launch.node.kwargs.get("actual_seq_kvlen", ())
        lengths.update(type(length).__name__ for length in given)
    return make_op(name, launches, *rest)


captured._op = noting
for name in names:
    answer(name, *small.VARIANTS[mode][name])

base, _ = small.VARIANTS[mode]["base"]
decode, _ = small.VARIANTS[mode]["decode" if mode == "eager" else "base"]
try:
    lower(decode, dataclasses.replace(small.SMALL, hidden_size=512), rank=1)
except InputError as error:
    answers["refused"] = [error.field, error.value]

# Streams that are not recorded where they read what others wrote.
if mode != "ge_graph":
    read = NpuIssue._read
    NpuIssue._read = lambda self, *tensors: None
    pieces = "attention of 2:1 in two micro-batches"
    answer("not kept", *((base, 1) if mode == "eager" else small.VARIANTS[mode][pieces]))
    answers["not kept"] = answers["not kept"]["differences"]
    NpuIssue._read = read

# The model without its join; in eager one that its device is not told of.
shortcut.LocalExperts.finish = lambda self, issue, ticket: ticket.rows
if mode == "eager":
    NpuIssue.wait = Backend.wait
answer("no join", base, 1)
answers["kinds of KV lengths"] = sorted(lengths)
with open(path, "w") as file:
    json.dump(answers, file)
