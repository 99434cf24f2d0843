"""A die's window for AFD's direct transport: HCCL knows it, torch_npu has a context of it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from runtime_npu.parallel.groups import peers
from runtime_npu.parallel.world import World
from twin.deployment import Role
from twin.model_spec import ModelSpec
from twin.windows import Windows

_SCHEDULES: dict[Role, int] = {"ffn": 0, "attention": 1}
"""schedule_mode of the context."""


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """The ``context`` [1024] int8 of a window, on the device; the rest must live as long."""

    context: torch.Tensor
    memory: torch.Tensor
    holder: Any


def open_window(windows: Windows, spec: ModelSpec, world: World) -> OpenWindow:
    """Register this rank's window with the dies of the other role, which do so at the same time.

    The group's communicator must be there.
    """
    role, backend = world.place.role, world.direct_group.handle._get_backend(torch.device("npu"))
    others = list(peers(world.deployment, world.rank))
    backend._window_register_and_exchange(windows.window_bytes(role), others)
    memory: torch.Tensor = backend._get_window_mem()
    holder = schedule_context(windows, spec.n_routed_experts, role, memory)
    return OpenWindow(holder.get_schedule_context_tensor(), memory, holder)


def schedule_context(windows: Windows, experts: int, role: Role, memory: torch.Tensor) -> Any:
    """torch_npu's holder of the context of a window in ``memory`` on a die of ``role``."""
    return import_module("torch_npu._afd").create_schedule_context_holder(
        schedule_mode=_SCHEDULES[role],
        session_num=windows.attention,
        micro_batch_num=windows.micro_batches,
        micro_batch_size=windows.rows,
        selected_expert_num=windows.choices,
        expert_num=experts,
        attn_to_ffn_token_size=windows.there_bytes,
        ffn_to_attn_token_size=windows.back_bytes,
        **{
            f"{role}_window": memory.data_ptr(),
            f"{role}_window_size": windows.window_bytes(role),
        },
    )
