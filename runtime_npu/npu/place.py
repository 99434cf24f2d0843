"""A rank's place on an NPU: its device, backend, compile cache and executor."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import hardware_models
import runtime_npu
import twin
from hardware_models.hardware import Hardware
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_issue import Listener
from runtime_npu.backends.npu_order import EagerOrder
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.npu.compile_cache import CompileCache, source_digest
from runtime_npu.npu.executor import NpuExecutor, to_npu
from runtime_npu.npu.forms import Forms
from runtime_npu.npu.window_forms import window_forms
from runtime_npu.npu.windows import open_window
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.parallel.world import World
from runtime_npu.standins.wheel import cache_folder
from twin.graph.shapes import step_shapes
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.schedule_io import dump_schedule
from twin.windows import step_windows


def npu_backend(hardware: Hardware, rank: int) -> NpuBackend:
    """The backend of ``rank``, whose device is set and torch.distributed initialised."""

    def name(group: Communicator) -> str:
        return communicator_name(group, rank)

    return NpuBackend(Forms(), EagerOrder(hardware), name, Listener())


def communicator_name(group: Communicator, rank: int) -> str:
    """HCCL's name of ``group``, as dispatch and combine are told it."""
    backend: Any = group.handle._get_backend(torch.device("npu"))
    return str(backend.get_hccl_comm_name(rank))


def npu_executor(
    model: LongcatFlash | FfnDie,
    backend: NpuBackend,
    world: World,
    hardware: Hardware,
    schedule: Schedule,
    spec: ModelSpec,
    compile_cache: Path | None,
) -> NpuExecutor:
    """The executor of ``world``'s rank; ``compile_cache`` is by default under the user's cache."""
    deployment = schedule.deployment
    # Which the code names.
    groups = [world.direct_group] if deployment.is_direct else [world.groups["ep"]]
    names = [communicator_name(group, world.rank) for group in groups if group.size > 1]
    cache = CompileCache(
        root=compile_cache or cache_folder() / "compiled",
        subject={"schedule": dump_schedule(schedule), "model": repr(spec)},
        versions={**software_versions(), "communicator": " ".join(names)},
        rank=world.rank,
        say=_say,
    )
    executor = NpuExecutor(model, backend, hardware, deployment, cache)
    if deployment.is_direct:
        windows = step_windows(step_shapes(schedule, spec))
        opened = open_window(windows, spec, world)
        forms = window_forms(windows, spec, world, names[0], opened.context, to_npu)
        executor.use_window(opened, forms)
    return executor


def software_versions() -> dict[str, str]:
    """What a compiled pass depends on besides its schedule and model."""
    cann: Any = import_module("torch_npu.npu.utils").get_cann_version
    return {
        "torch": torch.__version__,
        "torch_npu": version("torch_npu"),
        "CANN": str(cann()),
        "longcat-twin": f"{version('longcat-twin')} {_own_code()}",
    }


@cache
def _own_code() -> str:
    """Digest of this project's code, as this process has loaded it."""
    packages = (hardware_models, runtime_npu, twin)
    return source_digest([Path(package.__path__[0]) for package in packages])


def _say(line: str) -> None:
    print(line, file=sys.stderr)
