"""Devices, their memory and cores, and the ops of torch_npu, asked in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hardware_models.hardware import Hardware
from runtime_npu.machine.finding import Finding, judge

PROBE_S = 120.0
"""How long the probe may take: loading torch_npu and CANN takes some tens of seconds."""

GIB = 2**30
_RAISED = re.compile(r"[\w.]*(Error|Exception): ")
NO_TORCH_NPU = "torch_npu is not there to ask"


@dataclass(frozen=True, slots=True)
class Device:
    """One die as torch_npu sees it."""

    name: str
    free_bytes: int
    total_bytes: int
    aic: int
    aiv: int


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe said; ``fault`` is why it said nothing."""

    devices: tuple[Device, ...] = ()
    missing_ops: tuple[str, ...] = ()
    fault: str = ""


def ask(command: Sequence[str], timeout_s: float = PROBE_S) -> Probed:
    """Run the probe ``command`` and read its answer."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return Probed(fault=f"no answer within {timeout_s:.0f} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        # torch_npu's own log lines come behind the exception that says what is wrong.
        errors = [line for line in lines if _RAISED.match(line)] or lines
        return Probed(fault=errors[-1])
    answer = json.loads(done.stdout.splitlines()[-1])
    return Probed(
        tuple(Device(**device) for device in answer["devices"]), tuple(answer["missing_ops"])
    )


def check_devices(probed: Probed) -> Finding:
    """Whether there is an NPU at all."""
    if probed.fault:
        fix = "make `python -c 'import torch_npu'` work: driver, CANN, the torch pair above"
        return Finding("devices", "fault", probed.fault, fix)
    names = sorted({device.name for device in probed.devices})
    found = f"{len(probed.devices)} x {', '.join(names)}" if names else "none"
    fix = "run on a machine with NPUs, or make them visible (ASCEND_RT_VISIBLE_DEVICES)"
    return judge("devices", bool(probed.devices), found, fix)


def check_memory(probed: Probed, needed_bytes: int) -> Finding:
    """Free HBM of the fullest die against what a die of the schedule holds."""
    check = "free HBM"
    if not probed.devices:
        return Finding(check, "unknown", f"{needed_bytes / GIB:.1f} GiB needed on a die")
    least = min(device.free_bytes for device in probed.devices)
    found = f"{least / GIB:.1f} GiB on the fullest die, {needed_bytes / GIB:.1f} needed"
    return judge(check, least >= needed_bytes, found, "end what else runs there, or use more dies")


def check_cores(probed: Probed, hardware: Hardware) -> Finding:
    """Core counts against the die that the schedule was made for."""
    check, wanted = "cores", (hardware.count("aic_count"), hardware.count("aiv_count"))
    if not probed.devices:
        return Finding(
            check, "unknown", f"{hardware.name} has {wanted[0]} cube, {wanted[1]} vector"
        )
    counts = sorted({(device.aic, device.aiv) for device in probed.devices})
    found = " and ".join(f"{aic} cube, {aiv} vector" for aic, aiv in counts)
    fix = f"schedules for {hardware.name} need {wanted[0]} and {wanted[1]}: search for this die"
    return judge(check, counts == [wanted], found, fix)


def check_ops(probed: Probed, needed: Sequence[str]) -> Finding:
    """The ops that the npu backend calls."""
    check = "ops"
    if probed.fault:
        return Finding(check, "unknown", f"{len(needed)} needed")
    missing = [name for name in probed.missing_ops if name in needed]
    found = ", ".join(missing) + " missing" if missing else f"all {len(needed)}"
    return judge(check, not missing, found, "install the torch_npu of the torch pair")
