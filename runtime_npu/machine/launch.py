"""Whether this process may start a run on NPUs: the doctor's checks, and those of the launch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hardware_models.errors import MachineError
from hardware_models.hardware import Hardware
from runtime_npu.machine.devices import NO_TORCH_NPU, Probed, ask
from runtime_npu.machine.environment import environment_findings
from runtime_npu.machine.finding import Finding
from runtime_npu.machine.hardware import machine_findings
from runtime_npu.machine.software import check_torch_pair
from runtime_npu.npu_ops import DIRECT_OPS, NEEDED_OPS
from runtime_npu.torchrun import whole_number
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

PROBE = (sys.executable, "-m", "runtime_npu.machine.probe", *NEEDED_OPS, *DIRECT_OPS)


def all_findings(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    environment: Mapping[str, str],
    root: Path,
    probe: Sequence[str],
    *,
    is_run: bool,
) -> tuple[Finding, ...]:
    """Machine and environment, for the machine whose file system begins at ``root``."""
    pair = check_torch_pair()
    probed = ask(probe) if pair.status == "ok" else Probed(fault=NO_TORCH_NPU)
    devices = len(probed.devices) or None
    return (
        *machine_findings(schedule, model, hardware, environment, root, pair, probed),
        *environment_findings(schedule, model, hardware, environment, devices, is_run=is_run),
    )


def require_npus(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    environment: Mapping[str, str],
    root: Path,
    probe: Sequence[str],
) -> None:
    """Refuse a run that cannot work here, before anything is loaded.

    Of a node's ranks the first one looks at the machine, all at their environment.

    Raises:
        MachineError: names every fault, what was found and what to do.
        InputError: LOCAL_RANK is no number.
    """
    if whole_number(environment, "LOCAL_RANK"):
        found = environment_findings(schedule, model, hardware, environment, None, is_run=True)
    else:
        found = all_findings(schedule, model, hardware, environment, root, probe, is_run=True)
    faults = [finding for finding in found if finding.status == "fault"]
    if not faults:
        return
    lines = [f"  {fault.check}: {fault.found}; {fault.fix}" for fault in faults]
    has_none = any(fault.check == "devices" for fault in faults)
    head = "there is no NPU that torch_npu can use" if has_none else "this launch cannot work"
    hint = "(python -m runtime_npu.doctor shows all checks"
    hint += "; device=cpu executes the same schedule)" if has_none else ")"
    raise MachineError("\n".join((f"device=npu: {head} {hint}", *lines)))
