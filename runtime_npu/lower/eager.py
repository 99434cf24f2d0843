"""Eager: a rank's step run on the stand-ins, whose launches are read back."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import override

from hardware_models.hardware import Hardware
from runtime_npu.lower.launched import AGAIN, Marks, note, read_launches
from runtime_npu.lower.lowered import LoweredOp
from runtime_npu.lower.noted import NotedCalls, WatchedOrder
from runtime_npu.lower.step import RankPass, rank_step
from runtime_npu.npu.step_inputs import bind_step
from runtime_npu.record import OpRecord
from runtime_npu.standins.process import LOG
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

_ROOT_INFO_BYTES = 4108


def launch_eager(
    schedule: Schedule, spec: ModelSpec, hardware: Hardware, rank: int
) -> tuple[list[LoweredOp], tuple[OpRecord, ...]]:
    """The ops of the step as launched, and the record of what was issued.

    The step runs twice: the first time makes communicators, and forms of weights.
    """
    if LOG not in os.environ:
        # A file in memory, gone with this process.
        os.environ[LOG] = f"/proc/self/fd/{os.memfd_create('launches')}"
    path = Path(os.environ[LOG])
    note("begins")
    start = path.stat().st_size
    store = _pretend_hccl(schedule.deployment.total_dies, rank)
    order, marks = WatchedOrder(hardware), Marks()
    step = rank_step(schedule, spec, order, rank, nullcontext(), marks)
    with torch.no_grad(), NotedCalls(order, marks):
        for word in ("first", AGAIN):
            step.backend.recorder.take()
            note(word)
            for one in step.passes:
                _issue(one)
    for label, stream in order.streams.items():
        note(f"stream {stream.npu_stream:#x} {label}")
    del store
    with path.open("rb") as log:
        log.seek(start)
        lines = log.read().decode().splitlines()
    return read_launches(lines, rank, order.races), step.backend.recorder.take()


def _issue(one: RankPass) -> None:
    """One pass, with tensors of its own beside the weights and the cache."""
    given, step = one.given, one.given.step
    if step is not None and given.inputs is not None:
        placed = [form.to("npu") for form in given.inputs.forms]
        forms = given.fixed
        step = bind_step(forms, step, given.inputs, placed, given.inputs.kv_lengths)
    one.run(step, given.hidden)


class _NobodyElse(torch._C._distributed_c10d.Store):
    """Answers for ranks that nobody runs, so that HCCL believes that all are there."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._ranks = ranks

    @override
    def set(self, key: str, value: Any) -> None:
        return

    @override
    def get(self, key: str) -> bytes:
        return bytes(_ROOT_INFO_BYTES)

    @override
    def add(self, key: str, amount: int) -> int:
        return self._ranks

    @override
    def wait(self, *_: Any) -> None:
        return

    @override
    def check(self, keys: list[str]) -> bool:
        return True

    @override
    def set_timeout(self, timeout: Any) -> None:
        return


def _pretend_hccl(ranks: int, rank: int) -> _NobodyElse:
    """Initialise torch.distributed as ``rank`` of ``ranks``; the store must be kept."""
    if dist.is_initialized():
        dist.destroy_process_group()
    store = _NobodyElse(ranks)
    dist.init_process_group("hccl", store=store, rank=rank, world_size=ranks)
    return store
