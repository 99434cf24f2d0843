"""The environment of a launch: HCCL's settings, and ranks per node."""

from __future__ import annotations

from collections.abc import Mapping

from hardware_models.hardware import Hardware
from runtime_npu.machine.finding import Finding, judge
from twin.deployment import Deployment
from twin.graph.shapes import step_shapes
from twin.memory import dispatch_buffer_mib
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

EXPANSION_MODE = "AIV"
"""HCCL_OP_EXPANSION_MODE that the schedules' collectives are modelled and run with."""


def check_buffer(
    schedule: Schedule, model: ModelSpec, hardware: Hardware, environment: Mapping[str, str]
) -> Finding:
    """HCCL_BUFFSIZE (MB) against what dispatch and combine of the schedule need."""
    name = "HCCL_BUFFSIZE"
    default = hardware.count("hccl_buffer_mb")
    text = environment.get(name, str(default))
    if not text.isdecimal():
        return Finding(name, "fault", repr(text), f"export {name}={default} (whole MB)")
    needed = dispatch_buffer_mib(step_shapes(schedule, model), hardware)
    found = f"{text} MB, {needed} needed" + ("" if name in environment else " (unset: the default)")
    return judge(name, int(text) >= needed, found, f"export {name}={needed}")


def check_expansion_mode(environment: Mapping[str, str]) -> Finding:
    """Whether collectives run on vector cores, as the schedules assume."""
    name = "HCCL_OP_EXPANSION_MODE"
    found = environment.get(name, "unset")
    return judge(name, found == EXPANSION_MODE, found, f"export {name}={EXPANSION_MODE}")


def check_ranks(
    deployment: Deployment, devices: int | None, environment: Mapping[str, str]
) -> Finding:
    """Ranks on this node against its devices, and of all nodes against the deployment.

    ``LOCAL_WORLD_SIZE`` and ``WORLD_SIZE`` are what torchrun sets; ``devices`` is None where
    they could not be counted.
    """
    check, dies = "ranks per node", deployment.total_dies
    local, world = environment.get("LOCAL_WORLD_SIZE"), environment.get("WORLD_SIZE")
    if local is None and world is None:
        if devices is None:
            return Finding(check, "unknown", f"no launch; the schedule has {dies} ranks")
        nodes = -(-dies // max(devices, 1))
        return Finding(check, "ok", f"no launch; {dies} ranks are {nodes} nodes of {devices}")
    if not (local or "").isdecimal() or not (world or "").isdecimal():
        found = f"LOCAL_WORLD_SIZE={local}, WORLD_SIZE={world}"
        return Finding(check, "fault", found, "launch with torchrun, which sets both")
    assert local is not None
    assert world is not None
    found = f"{local} here, {world} in all; {devices} devices, {dies} dies in the schedule"
    if int(world) != dies:
        return Finding(check, "fault", found, f"launch {dies} ranks, one a die")
    if devices is None:
        return Finding(check, "unknown", found)
    return judge(check, int(local) <= devices, found, f"launch at most {devices} ranks a node")
