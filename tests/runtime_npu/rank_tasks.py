"""What ranks do in the tests of the launcher; a rank's process imports this module by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

from hardware_models.errors import InputError
from runtime_npu.parallel.world import World
from twin.deployment import Deployment, RoleDeployment


def world_of(ranks: int, rank: int) -> World:
    roles = {"colocated": RoleDeployment(dies=ranks, ep=ranks)}
    return World(
        Deployment(hardware="a3-752t", quantisation="fp32", graph_mode="eager", roles=roles),  # type: ignore[arg-type]
        rank,
    )


def gather(ranks: int, rank: int) -> list[int]:
    values: list[int] = world_of(ranks, rank).gather(torch.tensor(10 * rank)).tolist()
    return values


def fail(how: str, rank: int) -> None:
    """Rank 1 fails in one of several ways while the others wait for it."""
    world = world_of(3, rank)
    if rank == 1:
        if how == "input":
            raise InputError("checkpoint", "x", "finite weights")
        if how == "fault":
            raise ZeroDivisionError("a fault of ours")
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "crashed":
            os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(7)
    world.barrier()


def note_and_wait(folder: str, rank: int) -> None:
    """Leave the own process id in ``folder``; then rank 0 never comes to the barrier."""
    world = world_of(2, rank)
    (Path(folder) / f"{rank}.part").write_text(str(os.getpid()))
    (Path(folder) / f"{rank}.part").rename(Path(folder) / f"{rank}.pid")
    if rank == 0:
        time.sleep(3600)
    world.barrier()
