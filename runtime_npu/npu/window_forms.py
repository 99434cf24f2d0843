"""What ops of AFD's direct transport take beside rows: all of it fixed before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from runtime_npu.backends.fillers import Candidates, candidates
from runtime_npu.parallel.world import World
from twin.model_spec import ModelSpec
from twin.windows import Windows

Place = Callable[[torch.Tensor], torch.Tensor]
"""Brings a host tensor to the device."""


@dataclass(frozen=True, slots=True)
class WindowForms:
    """Tables of a die on the device.

    ``context`` [1024] int8 is torch_npu's schedule context of the die's window; ``session`` [1]
    int32 the attention die's number, ``numbers`` the numbers of the micro-batches [1] int32 each.
    ``expert_ranks`` [1, experts, 2] int32 gives an expert's copies and the rank that has it,
    ``attention_ranks`` [attention dies] int32 their ranks; ``candidates`` are those for fillers.
    ``group`` is HCCL's name of the communicator of all ``ranks``.
    """

    windows: Windows
    group: str
    ranks: int
    experts: int
    context: torch.Tensor
    session: torch.Tensor
    numbers: tuple[torch.Tensor, ...]
    expert_ranks: torch.Tensor
    attention_ranks: torch.Tensor
    candidates: Candidates

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in order."""
        free = self.candidates
        tables = self.expert_ranks, self.attention_ranks
        return [self.context, self.session, *self.numbers, *tables, free.ids, free.keys]

    def copy(self, form: Place) -> WindowForms:
        """The same with ``form(...)`` of each tensor."""
        free = self.candidates
        return replace(
            self,
            context=form(self.context),
            session=form(self.session),
            numbers=tuple(map(form, self.numbers)),
            expert_ranks=form(self.expert_ranks),
            attention_ranks=form(self.attention_ranks),
            candidates=Candidates(form(free.ids), form(free.keys)),
        )


def window_forms(
    windows: Windows, spec: ModelSpec, world: World, group: str, context: torch.Tensor, place: Place
) -> WindowForms:
    """Those of ``world``'s rank, brought to the device by ``place``; ``context`` is there."""
    attention, dies = windows.attention, world.deployment.moe.dies
    expert = torch.arange(spec.n_routed_experts, dtype=torch.int32)
    rank = attention + expert // (spec.n_routed_experts // dies)
    free = candidates(windows.rows, windows.choices, spec.n_routed_experts)

    def number(value: int) -> torch.Tensor:
        return place(torch.tensor([value], dtype=torch.int32))

    return WindowForms(
        windows=windows,
        group=group,
        ranks=world.size,
        experts=spec.n_routed_experts,
        context=context,
        session=number(world.place.number),
        numbers=tuple(number(turn) for turn in range(windows.micro_batches)),
        expert_ranks=place(torch.stack((torch.ones_like(expert), rank), 1)[None]),
        attention_ranks=place(torch.arange(attention, dtype=torch.int32)),
        candidates=Candidates(place(free.ids), place(free.keys)),
    )
