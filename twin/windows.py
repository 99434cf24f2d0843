"""The windows of direct transfers: memory of a die that dies of the other role write into.

A window is a table of flags, then a table of slots for token copies.  The shapes are those of
torch_npu 2.13: what its schedule context computes from the same numbers (a test compares them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hardware_models.ops.tiling import ELEMENT_BYTES
from hardware_models.ops.vector_transfer import back_slot_bytes, slot_bytes
from twin.deployment import Role
from twin.graph.shapes import StepShapes

FLAG_BYTES = 4
ALIGNMENT_BYTES = 512
"""Where the slots behind the flags begin."""

HEAD_FLAGS = 2
"""Words before the flags of a micro-batch on an FFN die: whether it is there, and its layer."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The tables of a deployment's windows.

    ``attention`` dies send ``rows`` rows in each of ``micro_batches``, for each of ``choices``
    experts a copy of ``hidden`` elements: ``element_bytes`` wide on the way there, 2 back.
    """

    attention: int
    micro_batches: int
    rows: int
    choices: int
    hidden: int
    element_bytes: int

    @property
    def there_bytes(self) -> int:
        """A copy's slot on an FFN die."""
        return slot_bytes(self.hidden, self.element_bytes)

    @property
    def back_bytes(self) -> int:
        """A copy's slot on an attention die."""
        return back_slot_bytes(self.hidden)

    def flags_shape(self, role: Role) -> tuple[int, ...]:
        """The table of flags on a die of ``role``."""
        if role == "ffn":
            return self.attention, self.micro_batches, HEAD_FLAGS + self.rows * self.choices
        return self.micro_batches, self.rows, self.choices

    def slots_shape(self, role: Role) -> tuple[int, ...]:
        """The table of copies on a die of ``role``, in elements."""
        copies = self.micro_batches, self.rows, self.choices
        if role == "ffn":
            return self.attention, *copies, self.there_bytes // self.element_bytes
        return *copies, self.back_bytes // 2

    def flags_bytes(self, role: Role) -> int:
        """The flags, up to where the slots begin."""
        size = math.prod(self.flags_shape(role)) * FLAG_BYTES
        return math.ceil(size / ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def window_bytes(self, role: Role) -> int:
        """The window of a die of ``role``."""
        element = self.element_bytes if role == "ffn" else 2
        return self.flags_bytes(role) + math.prod(self.slots_shape(role)) * element


def step_windows(shapes: StepShapes) -> Windows:
    """The windows for a step of these sizes: room for its largest micro-batch in each."""
    deployment = shapes.schedule.deployment
    return Windows(
        attention=deployment.attention.dies,
        micro_batches=len(shapes.micro_batches),
        rows=shapes.rows(max(shapes.micro_batches)),
        choices=shapes.model.moe_topk,
        hidden=shapes.model.hidden_size,
        element_bytes=1 if shapes.is_quantised else ELEMENT_BYTES[shapes.dtype],
    )
