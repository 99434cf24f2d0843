"""Running a module in a process of its own, on the real torch_npu and the stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime_npu.standins.build import built_standins
from runtime_npu.standins.child import FOLDER
from runtime_npu.standins.wheel import find_wheel

LOG = "STANDIN_LOG"
"""Environment variable: a file to which launches, events and core limits are appended."""

DEVICES = "STANDIN_DEVICES"
"""Environment variable: how many dies there seem to be (1 where it is not set)."""


def child_command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs ``module`` on the stand-ins; see :func:`child_environment`."""
    return [sys.executable, "-m", "runtime_npu.standins.child", module, *arguments]


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The own environment, with the wheel and the stand-ins to be found.

    Raises:
        MachineError: the wheel, gcc or binutils is missing.
    """
    here = Path(__file__).parents[2]
    folders = [str(find_wheel()), str(here), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder),
        # Without it torch would load torch_npu by itself, in a place that is too early.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        # Launches in the order of the calls, by the thread that calls.
        "TASK_QUEUE_ENABLE": "0",
        FOLDER: str(built_standins()),
        **(extra or {}),
    }


def run_on_standins(
    module: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module arguments`` there, its output captured; never raises on its rc.

    Raises:
        MachineError: the wheel, gcc or binutils is missing.
    """
    return subprocess.run(
        child_command(module, arguments),
        env=child_environment(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
