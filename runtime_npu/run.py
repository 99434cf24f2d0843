"""`python -m runtime_npu.run`: execute a schedule - prefill, then decode - on CPUs or NPUs.

The run folder gets result.json (the same bytes for the same inputs, versions and seed) and
timing.json.  All that is measured - `ttft_ms`, `tpot_ms`, `step_ms`, `forward_ms` and `wall_s`
- is in timing.json alone, because no two runs measure the same.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

from hardware_models.errors import TwinError
from hardware_models.hardware import load_hardware
from runtime_npu.machine.launch import PROBE, require_npus
from runtime_npu.options import RunOptions
from runtime_npu.packages import PACKAGES, require_packages
from twin.cli import run as run_command
from twin.models import load_model
from twin.results import write_result, write_timing
from twin.schedule_io import load_schedule, save_schedule

COMMAND = "runtime_npu.run"
ROOT = Path("/")


class MismatchError(TwinError):
    """The model issued other ops than the step graph of its schedule has."""


def require_device(options: RunOptions, root: Path) -> None:
    """Check that the machine whose file system begins at ``root`` can run this at all.

    Raises:
        MachineError: torch or safetensors is missing; with device=npu whatever the doctor would
            find, or a launch that cannot work.
        InputError: the schedule or the model cannot be read.
    """
    require_packages()
    if options.device != "npu":
        return
    schedule = load_schedule(options.schedule)
    asked = options.prompt_ids or options.prompts or ()
    batch = max(schedule.workload.global_batch, len(asked))
    workload = dataclasses.replace(schedule.workload, global_batch=batch)
    model = load_model(options.checkpoint or options.model or schedule.model)
    hardware = load_hardware(schedule.deployment.hardware)
    schedule = dataclasses.replace(schedule, workload=workload)
    require_npus(schedule, model, hardware, os.environ, root, PROBE)


def main(options: RunOptions, folder: Path) -> None:
    """Run, print and write the result files.

    Raises:
        MismatchError: the ops issued are not the step graph's.
    """
    start = time.perf_counter()
    require_device(options, ROOT)
    # Only now: --help and the checks above must work without torch.
    from runtime_npu.execute import PROFILE, execute  # noqa: PLC0415
    from runtime_npu.profile_folder import SCHEDULE, as_run, write_profile  # noqa: PLC0415
    from runtime_npu.summary import payload, print_summary, rates  # noqa: PLC0415

    result = execute(options, folder)
    if result is None:
        return
    print_summary(result)
    packages = PACKAGES if options.device == "cpu" else (*PACKAGES, "torch_npu")
    write_result(folder, COMMAND, options.seed, payload(result), packages=packages)
    write_timing(folder, time.perf_counter() - start, rates(result))
    if options.profile:
        if options.device == "cpu":
            write_profile(result, folder / PROFILE)
        else:
            save_schedule(as_run(result), folder / PROFILE / SCHEDULE)
    print(f"wrote {folder}/result.json and timing.json")
    if result.differences:
        raise MismatchError("\n".join(("issued otherwise than planned:", *result.differences)))


if __name__ == "__main__":
    sys.exit(run_command("run", RunOptions, main))
