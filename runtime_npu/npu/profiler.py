"""Capturing decode steps with torch_npu's profiler, in the folders that calibration reads."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from typing_extensions import override

from hardware_models.errors import InputError, MachineError
from runtime_npu.generate import Decoder
from runtime_npu.model.longcat import StepOutput
from twin.deployment import Deployment
from twin.results import write_json

ALL_STEPS = 1_000_000
"""Steps to record: more than any run has, so that the analysis comes behind the last one."""


def step_profiler(folder: Path, rank: int) -> Any:
    """A profiler of this rank's steps; ``stop`` writes ``folder/rank_N_..._ascend_pt``.

    Level 1 has every kernel, collectives and their bytes; PipeUtilization says which pipe of a
    core was busy.  Both are what ``calibration.fit profiles=`` and ``calibration.diagnose`` read.
    """
    profiler: Any = import_module("torch_npu").profiler
    config = profiler._ExperimentalConfig(
        profiler_level=profiler.ProfilerLevel.Level1,
        aic_metrics=profiler.AiCMetrics.PipeUtilization,
        l2_cache=False,
        export_type=[profiler.ExportType.Text],
    )
    return profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        schedule=profiler.schedule(wait=0, warmup=1, active=ALL_STEPS, repeat=1),
        on_trace_ready=profiler.tensorboard_trace_handler(str(folder), worker_name=f"rank_{rank}"),
        record_shapes=True,
        experimental_config=config,
    )


class StepProfiledDecoder(Decoder):
    """A decoder whose steps from number ``first`` on (the first one is 0) are captured."""

    def watch(self, profiler: Any, first: int) -> None:
        """Capture with ``profiler``."""
        self._profiler, self._first, self._seen = profiler, first, 0

    @override
    def verify(self, rows: Sequence[Sequence[int]]) -> StepOutput:
        if self._seen == self._first:
            self._profiler.start()
        elif self._seen > self._first:
            self._profiler.step()
        self._seen += 1
        return super().verify(rows)

    def finish(self, folder: Path, rank: int, noted: Mapping[str, object]) -> None:
        """Write what was captured, and beside it what the run knows of itself.

        Raises:
            InputError: too few steps ran to capture one.
            MachineError: the profiler wrote no kernels; it says why itself, and goes on.
        """
        if self._seen < self._first + 2:
            allowed = f"so many that {self._first + 2} steps run, one of which is captured"
            raise InputError("max_new_tokens", f"{self._seen} steps", allowed)
        self._profiler.stop()
        tables = sorted(folder.glob(f"rank_{rank}_*/ASCEND_PROFILER_OUTPUT/kernel_details.csv"))
        if not tables:
            raise MachineError(
                f"torch_npu's profiler wrote no kernel_details.csv of rank {rank} in {folder}; "
                "its messages above say why"
            )
        write_json(tables[-1].parent / "measured.json", noted)


def noted_of(
    deployment: Deployment, kv_tokens: float, forward_s: Sequence[float], plain: int
) -> dict[str, object]:
    """What calibration reads beside a rank's kernels: shapes that kernels do not say, and steps.

    ``forward_s`` are all steps, of which the first ``plain`` ran without the profiler.
    """
    steps_us = [seconds * 1e6 for seconds in forward_s]
    return {
        "device": "npu",
        "kv_tokens": round(kv_tokens),
        "ep": max(role.ep for role in deployment.roles.values()),
        "clock": "events on the device around each pass",
        "step_us": statistics.median(steps_us[:plain] or steps_us),
        "all_steps_us": statistics.median(steps_us),
        "running_share": 1.0,
    }
