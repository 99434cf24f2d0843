"""The environment of a launch: HCCL's settings, and ranks per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hardware_models.hardware import Hardware
from runtime_npu.machine.finding import Finding, judge
from twin.deployment import Deployment
from twin.graph.shapes import step_shapes
from twin.memory import dispatch_buffer_mib
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

DIES_PER_NODE = 16
"""Of an Atlas A3 node: 8 packages of 2 dies (the recipe's README)."""

BUFFER = "HCCL_BUFFSIZE"
ZERO_COPY = "HCCL_ZERO_COPY"
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
ADVISED = {
    "HCCL_CONNECT_TIMEOUT": "1200",
    "HCCL_EXEC_TIMEOUT": "1200",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
}
"""What the recipe exports besides: seconds that ranks wait for one that still compiles, and an
allocator that wastes less.  A run works without them."""

EXPANSION_MODE = "AIV"
"""HCCL_OP_EXPANSION_MODE that the schedules' collectives are modelled and run with."""


def check_buffer(
    schedule: Schedule, model: ModelSpec, hardware: Hardware, environment: Mapping[str, str]
) -> Finding:
    """HCCL_BUFFSIZE (MB) against what dispatch and combine of the schedule need.

    Prefill exchanges without them: there it is the decode steps behind it that need the buffer.
    """
    default = hardware.count("hccl_buffer_mb")
    text = environment.get(BUFFER, str(default))
    if not text.isdecimal():
        return Finding(BUFFER, "fault", repr(text), f"export {BUFFER}={default} (whole MB)")
    decode = replace(schedule, workload=replace(schedule.workload, phase="decode"), prefill=None)
    needed = dispatch_buffer_mib(step_shapes(decode, model), hardware)
    unset = "" if BUFFER in environment else " (unset: the default)"
    found = f"{text} MB, {needed} needed{unset}"
    return judge(BUFFER, int(text) >= needed, found, f"export {BUFFER}={needed}")


def check_expansion_mode(environment: Mapping[str, str]) -> Finding:
    """Whether collectives run on vector cores, as the schedules assume."""
    name = "HCCL_OP_EXPANSION_MODE"
    found = environment.get(name, "unset")
    return judge(name, found == EXPANSION_MODE, found, f"export {name}={EXPANSION_MODE}")


def check_zero_copy(environment: Mapping[str, str]) -> Finding:
    """HCCL_ZERO_COPY, with which torch_npu registers no windows for direct transfers."""
    found = environment.get(ZERO_COPY, "unset")
    return judge(ZERO_COPY, found in ("unset", "0"), found, f"unset {ZERO_COPY}")


def environment_findings(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    environment: Mapping[str, str],
    devices: int | None,
    *,
    is_run: bool = False,
) -> tuple[Finding, ...]:
    """All of this module's checks; ``devices`` is None where they could not be counted."""
    return (
        check_buffer(schedule, model, hardware, environment),
        check_expansion_mode(environment),
        *([check_zero_copy(environment)] if schedule.deployment.is_direct else ()),
        check_visible(environment),
        check_ranks(schedule.deployment, devices, environment, is_run=is_run),
        *(check_advised(name, environment) for name in ADVISED),
    )


def check_visible(environment: Mapping[str, str]) -> Finding:
    """Whether ASCEND_RT_VISIBLE_DEVICES, where it is set, names enough devices, each once.

    Rank i of a node takes the i-th of them.
    """
    if VISIBLE not in environment:
        return Finding(VISIBLE, "ok", "unset: all devices of the node")
    text, local = environment[VISIBLE], environment.get("LOCAL_WORLD_SIZE", "")
    names = text.split(",")
    if not all(name.isdecimal() for name in names) or len(set(names)) < len(names):
        fix = f"unset {VISIBLE}, or name each device once, as in 0,1,2,3"
        return Finding(VISIBLE, "fault", repr(text), fix)
    ranks = int(local) if local.isdecimal() else 1
    found = f"{len(names)} devices"
    fix = f"unset {VISIBLE}, or name a device for each of the node's {ranks} ranks"
    return judge(VISIBLE, len(names) >= ranks, found, fix)


def check_advised(name: str, environment: Mapping[str, str]) -> Finding:
    """A variable that a run can do without; one with a wrong value is a fault."""
    found = environment.get(name)
    if found is None:
        return Finding(name, "ok", f"unset; the recipe exports {ADVISED[name]}")
    is_time = name.endswith("_TIMEOUT")
    good = not is_time or (found.isdecimal() and int(found) > 0)
    return judge(name, good, found, f"export {name}={ADVISED[name]} (whole seconds)")


def check_ranks(
    deployment: Deployment,
    devices: int | None,
    environment: Mapping[str, str],
    *,
    is_run: bool = False,
) -> Finding:
    """Ranks on this node against its devices, and of all nodes against the deployment.

    ``LOCAL_WORLD_SIZE`` and ``WORLD_SIZE`` are what torchrun sets; ``devices`` is None where
    they could not be counted.  ``is_run``: without torchrun all ranks are to start here.
    """
    check, dies = "ranks per node", deployment.total_dies
    local, world = environment.get("LOCAL_WORLD_SIZE"), environment.get("WORLD_SIZE")
    if local is None and world is None:
        return _without_torchrun(check, dies, devices, is_run=is_run)
    if not (local or "").isdecimal() or not (world or "").isdecimal():
        found = f"LOCAL_WORLD_SIZE={local}, WORLD_SIZE={world}"
        return Finding(check, "fault", found, "launch with torchrun, which sets both")
    assert local is not None
    assert world is not None
    found = f"{local} here, {world} in all; {devices} devices, {dies} dies in the schedule"
    if int(world) != dies:
        return Finding(check, "fault", found, f"launch {dies} ranks, one a die")
    most = DIES_PER_NODE if devices is None else devices
    if int(local) > most:
        return Finding(check, "fault", found, f"launch at most {most} ranks a node")
    return Finding(check, "unknown" if devices is None else "ok", found)


def _without_torchrun(check: str, dies: int, devices: int | None, *, is_run: bool) -> Finding:
    if devices is None:
        return Finding(check, "unknown", f"no launch; the schedule has {dies} ranks")
    nodes = -(-dies // max(devices, 1))
    if is_run and nodes > 1:
        fix = f"torchrun --nnodes={nodes} --nproc-per-node={devices} on every node"
        return Finding(check, "fault", f"{dies} ranks for {devices} devices", fix)
    return Finding(check, "ok", f"no launch; {dies} ranks are {nodes} nodes of {devices}")
