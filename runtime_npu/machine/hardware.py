"""What is checked of the machine itself, in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hardware_models.hardware import Hardware
from runtime_npu.machine.devices import (
    Probed,
    check_cores,
    check_devices,
    check_memory,
    check_ops,
)
from runtime_npu.machine.finding import Finding
from runtime_npu.machine.software import check_cann, check_driver
from runtime_npu.npu_ops import needed_ops
from twin.memory import memory_ledger
from twin.model_spec import ModelSpec
from twin.schedule import Schedule


def machine_findings(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    environment: Mapping[str, str],
    root: Path,
    pair: Finding,
    probed: Probed,
) -> tuple[Finding, ...]:
    """Driver, CANN, the torch ``pair``, devices, cores, free HBM, ops."""
    needed = max(ledger.total_bytes for ledger in memory_ledger(schedule, model, hardware).values())
    return (
        check_driver(root),
        check_cann(root, environment),
        pair,
        check_devices(probed),
        check_cores(probed, hardware),
        check_memory(probed, needed),
        check_ops(probed, needed_ops(schedule.deployment)),
    )
