"""`python -m runtime_npu.run`: execute a schedule - prefill, then greedy decode.

The run folder gets result.json (the same bytes for the same inputs, versions and seed) and
timing.json.  All that is measured - `ttft_ms`, `tpot_ms`, `step_ms` and `wall_s` - is in
timing.json alone, because no two runs measure the same.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

from hardware_models.errors import InputError, MachineError, TwinError
from runtime_npu.options import Device, RunOptions
from runtime_npu.packages import PACKAGES, require_packages
from twin.cli import run as run_command
from twin.results import write_result, write_timing

COMMAND = "runtime_npu.run"


class MismatchError(TwinError):
    """The model issued other ops than the step graph of its schedule has."""


def require_device(device: Device) -> None:
    """Check that this machine can run on ``device`` at all.

    Raises:
        MachineError: torch, safetensors or (for an NPU) torch_npu is missing.
        InputError: the device is there but not executed on yet.
    """
    require_packages()
    if device == "npu":
        if importlib.util.find_spec("torch_npu") is None:
            raise MachineError(
                "device=npu needs torch_npu and CANN, which this machine lacks; "
                "device=cpu executes the same schedule with the reference backend"
            )
        raise InputError("device", device, "cpu (what the runtime executes on)")


def main(options: RunOptions, folder: Path) -> None:
    """Run, print and write the result files.

    Raises:
        MismatchError: the ops issued are not the step graph's.
    """
    start = time.perf_counter()
    require_device(options.device)
    # Only now: --help and the checks above must work without torch.
    from runtime_npu.execute import execute  # noqa: PLC0415
    from runtime_npu.profile_folder import write_profile  # noqa: PLC0415
    from runtime_npu.summary import payload, print_summary, rates  # noqa: PLC0415

    result = execute(options, folder / "checkpoint")
    if result is None:
        return
    print_summary(result)
    write_result(folder, COMMAND, options.seed, payload(result), packages=PACKAGES)
    write_timing(folder, time.perf_counter() - start, rates(result))
    if options.profile:
        write_profile(result, folder / "profile")
    print(f"wrote {folder}/result.json and timing.json")
    if result.differences:
        raise MismatchError("\n".join(("issued otherwise than planned:", *result.differences)))


if __name__ == "__main__":
    sys.exit(run_command("run", RunOptions, main))
