"""AFD's direct transport: copies written into windows of the other role's dies.

torch_npu 2.13 has the ops and their GE converters, but no text on what they take besides an
example for each worker scheduler.  What is not in these, in signatures, meta functions or the
schedule context is assumed, and docs/running_on_a3.md lists it: T token rows of each of M
micro-batches, topk copies of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime_npu.npu.contract import Contract, call
from runtime_npu.npu.moe_ops import INT8
from runtime_npu.npu.vector_ops import FLOATS
from runtime_npu.npu.window_forms import WindowForms
from twin.validate.deployment import HIDDEN_RANGE, MOST_EXPERTS, MOST_ROWS, MOST_TOPK

CONTEXT_BYTES = 1024
_TOKEN_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.int8: 2}


@dataclass(frozen=True, slots=True)
class Batched:
    """Copies of all attention dies, by expert: ``rows`` [N, H], of which ``total`` [1] are there.

    ``counts`` [experts, 2] int64 pairs expert and copies, ``scales`` [N] fp32 are those of int8
    rows.  ``sessions``, ``micro_batches``, ``tokens`` and ``offsets`` [N] int32 say whose copies
    they are.
    """

    rows: torch.Tensor
    counts: torch.Tensor
    sessions: torch.Tensor
    micro_batches: torch.Tensor
    tokens: torch.Tensor
    offsets: torch.Tensor
    scales: torch.Tensor
    total: torch.Tensor


def attention_to_ffn(
    x: torch.Tensor, ids: torch.Tensor, forms: WindowForms, turn: int, *, quantise: bool
) -> None:
    """Write the rows of ``x`` [T, H] for the experts ``ids`` [T, topk] int32, all real.

    ``turn`` is the micro-batch; ``quantise``: as int8, each row with a scale.
    """
    op, windows = "npu_attention_to_ffn", forms.windows
    check = Contract(op)
    check.tensor("x", x, (windows.rows, windows.hidden), *FLOATS)
    check.within("Bs (rows of x)", windows.rows, 1, MOST_ROWS)
    check.within("H (columns of x)", windows.hidden, *HIDDEN_RANGE)
    check.tensor("expert_ids", ids, (windows.rows, windows.choices), torch.int32)
    check.within("K (columns of expert_ids)", windows.choices, 1, MOST_TOPK)
    check.within("moe_expert_num", forms.experts, 2 * windows.choices, MOST_EXPERTS)
    wide = 1 if quantise else x.element_size()
    check.one_of("ffn_token_data element bytes", windows.element_bytes, wide)
    check.within("micro_batch_id", turn, 0, windows.micro_batches - 1)
    check.holds(bool(forms.group), "group", forms.group, "the name of a communicator")
    call(
        op,
        x[None],
        forms.session,
        forms.numbers[turn],
        forms.numbers[0],
        ids[None],
        forms.expert_ranks,
        forms.group,
        forms.ranks,
        windows.flags_shape("ffn"),
        windows.slots_shape("ffn"),
        windows.flags_shape("attention"),
        forms.experts,
        quant_mode=INT8 if quantise else 0,
        ffn_start_rank_id=windows.attention,
    )


def attention_wait(context: torch.Tensor) -> torch.Tensor:
    """On an attention die: the schedule context once a micro-batch's copies are all back."""
    Contract("attention_worker_scheduler").tensor("context", context, (CONTEXT_BYTES,), torch.int8)
    waited: torch.Tensor = call("attention_worker_scheduler", context)
    return waited


def attention_combine(
    context: torch.Tensor, weights: torch.Tensor, forms: WindowForms, dtype: torch.dtype
) -> torch.Tensor:
    """The sum of a row's copies, weighted by ``weights`` [T, topk] fp32: [T, H] of ``dtype``."""
    check, windows = Contract("npu_attention_worker_combine"), forms.windows
    check.tensor("schedule_context", context, (CONTEXT_BYTES,), torch.int8)
    check.tensor("expert_scales", weights, (windows.rows, windows.choices), torch.float32)
    check.one_of("token_dtype", dtype, *FLOATS)
    summed: torch.Tensor = call(
        "npu_attention_worker_combine",
        context,
        weights,
        forms.numbers[0],
        windows.hidden,
        token_dtype=_TOKEN_DTYPES[dtype],
    )[0]
    return summed


def ffn_wait(context: torch.Tensor, forms: WindowForms) -> torch.Tensor:
    """On an FFN die: the schedule context once all attention dies' copies are there."""
    Contract("ffn_worker_scheduler").tensor("context", context, (CONTEXT_BYTES,), torch.int8)
    waited: torch.Tensor = call(
        "ffn_worker_scheduler", context, sync_group_size=forms.windows.attention
    )
    return waited


def ffn_batching(context: torch.Tensor, forms: WindowForms, dtype: torch.dtype) -> Batched:
    """The copies that ``context`` has found, of ``dtype``, as many rows as there could be."""
    check, windows = Contract("npu_ffn_worker_batching"), forms.windows
    check.tensor("schedule_context", context, (CONTEXT_BYTES,), torch.int8)
    check.one_of("token_dtype", dtype, *_TOKEN_DTYPES)
    check.one_of("token element bytes", windows.element_bytes, dtype.itemsize)
    most = windows.attention, windows.rows, windows.choices, windows.hidden
    given = call(
        "npu_ffn_worker_batching",
        context,
        forms.experts,
        most,
        token_dtype=_TOKEN_DTYPES[dtype],
    )
    return Batched(*given)


def ffn_to_attention(rows: torch.Tensor, batched: Batched, forms: WindowForms) -> None:
    """Write ``rows`` [N, H], in the order of ``batched``, to where its copies came from."""
    op, windows = "npu_ffn_to_attention", forms.windows
    check = Contract(op)
    check.tensor("x", rows, tuple(batched.rows.shape), *FLOATS)
    check.holds(bool(forms.group), "group", forms.group, "the name of a communicator")
    call(
        op,
        rows,
        batched.sessions,
        batched.micro_batches,
        batched.tokens,
        batched.offsets,
        batched.total,
        forms.group,
        forms.ranks,
        windows.flags_shape("attention"),
        windows.slots_shape("attention"),
        attn_rank_table=forms.attention_ranks,
    )
