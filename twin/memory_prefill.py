"""Activations of a prefill step: what eager mode keeps at its fullest moment."""

from __future__ import annotations

from hardware_models.ops.tiling import ELEMENT_BYTES
from twin.graph.shapes import StepShapes

_LOGIT_BYTES = 4


def prefill_activation_bytes(shapes: StepShapes) -> int:
    """Bytes on one die; eager mode frees a tensor behind its last reader.

    Every micro-batch keeps its residual, u and the MoE's output (rows x hidden each) beside
    the fullest of attention, dense FFN and one MoE chunk, for micro-batches are in flight
    together.  The logits of the last tokens come when all that is gone.
    """
    parts = sum(_micro_batch_bytes(shapes, part) for part in shapes.micro_batches)
    logits = shapes.head_rows(shapes.sequences) * shapes.model.vocab_size * _LOGIT_BYTES
    return max(parts, logits)


def _micro_batch_bytes(shapes: StepShapes, sequences: int) -> int:
    kept = 3 * shapes.rows(sequences) * shapes.model.hidden_size * ELEMENT_BYTES[shapes.dtype]
    chunk = max(shapes.moe_chunks(sequences))
    return kept + max(
        _attention_bytes(shapes, sequences), _dense_bytes(shapes, sequences), _moe(shapes, chunk)
    )


def _attention_bytes(shapes: StepShapes, sequences: int) -> int:
    """Normed rows, latents, queries, keys and values of all local heads, and their result."""
    model = shapes.model
    heads = 2 * model.qk_head_dim + 2 * model.v_head_dim
    width = model.hidden_size + model.q_lora_rank + model.kv_width + shapes.local_heads * heads
    return shapes.attention_rows(sequences) * width * ELEMENT_BYTES[shapes.dtype]


def _dense_bytes(shapes: StepShapes, sequences: int) -> int:
    """Gathered rows (int8 as well under w8a8), gate and up, their product, the partial sums."""
    model, tp = shapes.model, shapes.schedule.deployment.attention.dense_tp
    size, hidden = ELEMENT_BYTES[shapes.dtype], model.hidden_size
    inner = 1 if shapes.is_quantised else size
    width = model.ffn_hidden_size // tp
    each = size * (2 * hidden + 2 * width) + inner * width + (hidden if shapes.is_quantised else 0)
    return shapes.rows(sequences) * tp * each


def _moe(shapes: StepShapes, rows: int) -> int:
    """One chunk: copies sent and returned, copies received twice over, and the experts' tensors.

    A received row lies there as it came and re-ordered, as gate and up, as their product, and
    as the result before and behind its way back into order.
    """
    model = shapes.model
    size, hidden, width = (
        ELEMENT_BYTES[shapes.dtype],
        model.hidden_size,
        model.expert_ffn_hidden_size,
    )
    inner = 1 if shapes.is_quantised else size
    sent = round(rows * model.real_topk) * hidden * (inner + size)
    received = inner * (2 * hidden + width) + size * (2 * width + 2 * hidden)
    return sent + round(shapes.arriving_rows(rows)) * received
