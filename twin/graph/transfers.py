"""What AFD transfers are on each transport: the ops at both ends, pass by pass."""

from __future__ import annotations

from hardware_models.demand import OpSpec
from hardware_models.ops import Receive, Send, VectorReceive, VectorSend
from hardware_models.ops.tiling import ELEMENT_BYTES
from twin.graph.shapes import StepShapes


class Transfers:
    """Specs of one deployment's transfers; ``sequences`` are those of a micro-batch.

    An FFN die has one receive and one send for each attention die that it serves.
    """

    def __init__(self, shapes: StepShapes) -> None:
        self._shapes = shapes
        afd = shapes.schedule.deployment.afd
        self._holds_cores = afd is not None and afd.holds_cores

    def to_ffn(self, sequences: int) -> tuple[OpSpec, OpSpec]:
        """Send and receive of an attention die's rows."""
        return self._pair(sequences)

    def to_attention(self, sequences: int) -> tuple[OpSpec, OpSpec]:
        """Send and receive of what the experts made of them."""
        return self._pair(sequences)

    def _pair(self, sequences: int) -> tuple[OpSpec, OpSpec]:
        """Activations of a micro-batch: rows x hidden, in the activation type."""
        shapes = self._shapes
        width = shapes.model.hidden_size * ELEMENT_BYTES[shapes.dtype]
        size = shapes.rows(sequences) * width
        if self._holds_cores:
            return VectorSend(size), VectorReceive(size)
        return Send(size), Receive(size)
