"""What AFD transfers are on each transport: the ops at both ends, pass by pass."""

from __future__ import annotations

from hardware_models.demand import OpSpec
from hardware_models.ops import (
    ExpertReceive,
    ExpertSend,
    ExpertWait,
    Receive,
    Send,
    VectorReceive,
    VectorSend,
)
from hardware_models.ops.tiling import ELEMENT_BYTES
from hardware_models.ops.vector_transfer import back_slot_bytes, slot_bytes
from twin.deployment import Role
from twin.graph.blocks import BlockOps
from twin.graph.shapes import StepShapes


class Transfers:
    """Specs of one deployment's transfers; ``sequences`` are those of a micro-batch.

    An FFN die has one receive and one send for each attention die that it serves alone; under
    direct, where all serve all, one kernel each.
    """

    def __init__(self, shapes: StepShapes) -> None:
        self._shapes = shapes
        self._deployment = shapes.schedule.deployment

    def to_ffn(self, sequences: int) -> tuple[OpSpec, OpSpec]:
        """Send and receive of an attention die's rows."""
        if not self._deployment.is_direct:
            return self._pair(sequences)
        shapes, ffn = self._shapes, self._deployment.moe.dies
        size = slot_bytes(shapes.model.hidden_size, 1 if shapes.is_quantised else self._element)
        on_link, busiest = self._copies(sequences)
        return (
            ExpertSend("attention_to_ffn", on_link, busiest, size, ffn),
            ExpertReceive(shapes.expert_rows(sequences), size),
        )

    def wait(self, role: Role) -> BlockOps:
        """What a die of ``role`` does before it receives: under direct, wait for all senders."""
        if not self._deployment.is_direct:
            return []
        return [("afd.wait", ExpertWait(self._deployment.roles[role].dies))]

    def to_attention(self, sequences: int) -> tuple[OpSpec, OpSpec]:
        """Send and receive of what the experts made of them."""
        if not self._deployment.is_direct:
            return self._pair(sequences)
        shapes, attention = self._shapes, self._deployment.attention.dies
        size = back_slot_bytes(shapes.model.hidden_size)
        _, busiest = self._copies(sequences)
        back = shapes.rows(sequences) * shapes.copies_per_token
        return (
            ExpertSend("ffn_to_attention", busiest, busiest, size, attention),
            ExpertReceive(back, size),
        )

    @property
    def _element(self) -> int:
        return ELEMENT_BYTES[self._shapes.dtype]

    def _copies(self, sequences: int) -> tuple[float, float]:
        """Token copies from an attention die to the simulated FFN die, those of the busier in all.

        Where A:F is no whole number, what the one sends and its part of what the other gets
        differ, and the larger holds the link for as long as either would.
        """
        shapes = self._shapes
        there = shapes.rows(sequences) * shapes.copies_per_token
        arriving = shapes.expert_rows(sequences)
        on_link = max(there, arriving / self._deployment.attention_ratio)
        return on_link, max(there, arriving)

    def _pair(self, sequences: int) -> tuple[OpSpec, OpSpec]:
        """Activations of a micro-batch: rows x hidden, in the activation type."""
        shapes = self._shapes
        size = shapes.rows(sequences) * shapes.model.hidden_size * self._element
        if self._deployment.afd is not None and self._deployment.afd.holds_cores:
            return VectorSend(size), VectorReceive(size)
        return Send(size), Receive(size)
