"""Routing, the exchanges of decode, and the sorting of prefill.

T counts token rows.  Expert ids below ``experts`` are real; the ``copies`` behind them are
LongCat's zero experts, which give the row itself back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime_npu.npu.contract import Contract, call
from runtime_npu.npu.vector_ops import FLOATS
from twin.validate.deployment import (
    EP_RANGE,
    HIDDEN_RANGE,
    MOST_EXPERTS,
    MOST_ROWS,
    MOST_TOPK,
)

SOFTMAX = 0
KEPT_WEIGHTS = 0
INT8 = 2
"""quant_mode of dispatch: int8 with a scale for each row."""

NOT_QUANTISED, QUANTISED_BY_ROW = -1, 1
"""quant_mode of init routing."""

COUNTS = 1
"""expert_token_nums_type and its like: a number for each expert, not running sums."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The experts and the ranks that hold them.

    ``group`` is HCCL's name of the communicator, ``rows`` the most rows that a rank brings.
    """

    group: str
    ranks: int
    rank: int
    experts: int
    copies: int
    rows: int

    @property
    def local_experts(self) -> int:
        """Experts on a rank."""
        return self.experts // self.ranks

    @property
    def global_rows(self) -> int:
        """Rows of all ranks, each padded to the most."""
        return self.rows * self.ranks


@dataclass(frozen=True, slots=True)
class Received:
    """What dispatch gives: ``rows`` [N, H] by local expert, ``counts`` [local experts] int64.

    ``scales`` [N] fp32 where the rows are int8.  ``assist``, ``sent`` and ``tp_sent`` go to
    combine as they are.
    """

    rows: torch.Tensor
    scales: torch.Tensor
    counts: torch.Tensor
    assist: torch.Tensor
    sent: torch.Tensor
    tp_sent: torch.Tensor


def gating_top_k(
    logits: torch.Tensor, bias: torch.Tensor, topk: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights [T, topk] fp32, ids [T, topk] int32) of ``logits`` [T, experts] fp32.

    ``bias`` [experts] fp32 counts in the choice only; weights are not renormalised.
    """
    check = Contract("npu_moe_gating_top_k")
    check.tensor("x", logits, (None, None), torch.float32)
    check.tensor("bias", bias, logits.shape[1:], torch.float32)
    check.within("k", topk, 1, logits.shape[1])
    weights, ids, _ = call(
        "npu_moe_gating_top_k",
        logits,
        topk,
        bias=bias,
        renorm=KEPT_WEIGHTS,
        norm_type=SOFTMAX,
        routed_scaling_factor=scale,
    )
    return weights, ids


def dispatch(x: torch.Tensor, ids: torch.Tensor, exchange: Exchange, *, quantise: bool) -> Received:
    """Send the rows of ``x`` [T, H] to the experts ``ids`` [T, topk] int32."""
    check = Contract("npu_moe_distribute_dispatch_v2")
    _check_exchange(check, exchange, x, ids)
    rows, scales, assist, counts, sent, tp_sent, _ = call(
        "npu_moe_distribute_dispatch_v2",
        x,
        ids,
        exchange.group,
        exchange.ranks,
        exchange.rank,
        exchange.experts,
        shared_expert_num=0,
        quant_mode=INT8 if quantise else 0,
        global_bs=exchange.global_rows,
        expert_token_nums_type=COUNTS,
        copy_expert_num=exchange.copies,
    )
    return Received(rows, scales, counts, assist, sent, tp_sent)


def combine(
    expert_rows: torch.Tensor,
    received: Received,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    exchange: Exchange,
) -> torch.Tensor:
    """Send ``expert_rows`` [N, H] back; the weighted sum of each row's experts: [T, H].

    ``x``, ``ids`` and ``exchange`` are those of dispatch, ``weights`` [T, topk] fp32.
    """
    check = Contract("npu_moe_distribute_combine_v2")
    _check_exchange(check, exchange, x, ids)
    check.tensor("expand_x", expert_rows, received.rows.shape, x.dtype)
    check.tensor("expert_scales", weights, ids.shape, torch.float32)
    sent = (exchange.ranks * exchange.local_experts,)
    check.tensor("ep_send_counts", received.sent, sent, torch.int32)
    combined: torch.Tensor = call(
        "npu_moe_distribute_combine_v2",
        expert_rows,
        ids,
        received.assist,
        received.sent,
        weights,
        exchange.group,
        exchange.ranks,
        exchange.rank,
        exchange.experts,
        tp_send_counts=received.tp_sent,
        ori_x=x,
        shared_expert_num=0,
        global_bs=exchange.global_rows,
        copy_expert_num=exchange.copies,
    )
    return combined


def _check_exchange(
    check: Contract, exchange: Exchange, x: torch.Tensor, ids: torch.Tensor
) -> None:
    check.tensor("x", x, (None, None), *FLOATS)
    rows, hidden = x.shape
    check.within("Bs (rows of x)", rows, 1, MOST_ROWS)
    check.within("H (columns of x)", hidden, *HIDDEN_RANGE)
    check.tensor("expert_ids", ids, (rows, None), torch.int32)
    check.within("K (columns of expert_ids)", ids.shape[1], 1, MOST_TOPK)
    check.within("ep_world_size", exchange.ranks, *EP_RANGE)
    check.within("ep_rank_id", exchange.rank, 0, exchange.ranks - 1)
    check.within("moe_expert_num", exchange.experts, 1, MOST_EXPERTS)
    check.divides("ep_world_size", exchange.ranks, exchange.experts, "real experts")
    check.holds(exchange.copies >= 0, "copy_expert_num", exchange.copies, "0 or more")
    check.within("maxBs", exchange.rows, rows, MOST_ROWS)
    check.holds(bool(exchange.group), "group_ep", exchange.group, "the name of a communicator")


def init_routing(
    x: torch.Tensor, ids: torch.Tensor, experts: int, copies: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of ``x`` [T, H] once for each choice of a real expert, by expert.

    Returns:
        rows [T x topk, H], those for zero experts undefined and last; where each (row, choice)
        went [T x topk] int32, -1 for zero experts; counts [experts] int64.
    """
    rows, places, counts, _ = _init_routing(x, ids, experts, copies, NOT_QUANTISED)
    return rows, places, counts


def init_routing_quantised(
    x: torch.Tensor, ids: torch.Tensor, experts: int, copies: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`init_routing` as int8, with a scale for each row [T x topk] fp32 behind the rows."""
    rows, places, counts, scales = _init_routing(x, ids, experts, copies, QUANTISED_BY_ROW)
    return rows, scales, places, counts


def _init_routing(
    x: torch.Tensor, ids: torch.Tensor, experts: int, copies: int, quant_mode: int
) -> tuple[torch.Tensor, ...]:
    check = Contract("npu_moe_init_routing_v2")
    check.tensor("x", x, (None, None), *FLOATS)
    check.tensor("expert_idx", ids, (x.shape[0], None), torch.int32)
    check.within("experts", experts, 1, MOST_EXPERTS)
    check.holds(copies >= 0, "copies", copies, "0 or more")
    given: tuple[torch.Tensor, ...] = call(
        "npu_moe_init_routing_v2",
        x,
        ids,
        active_num=ids.numel(),
        # Every id must be below this; only those in the range get rows.
        expert_num=experts + copies,
        expert_tokens_num_type=COUNTS,
        expert_tokens_num_flag=True,
        quant_mode=quant_mode,
        active_expert_range=[0, experts],
    )
    return given


def re_routing(
    rows: torch.Tensor, counts: torch.Tensor, scales: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows [N, H] that came rank by rank, sorted by local expert.

    ``counts`` [ranks, local experts] int64; ``scales`` [N] fp32 where the rows are int8.

    Returns:
        rows [N, H]; their scales; their old places [N] int32; counts [local experts] int64.
    """
    check = Contract("npu_moe_re_routing")
    check.tensor("tokens", rows, (None, None), *FLOATS, torch.int8)
    check.tensor("expert_token_num_per_rank", counts, (None, None), torch.int64, torch.int32)
    is_int8 = rows.dtype == torch.int8
    check.one_of("per_token_scales given", scales is not None, is_int8)
    if scales is not None:
        check.tensor("per_token_scales", scales, (rows.shape[0],), torch.float32)
    sorted_rows, sorted_scales, places, totals = call(
        "npu_moe_re_routing",
        rows,
        counts,
        per_token_scales=scales,
        expert_token_num_type=COUNTS,
    )
    return sorted_rows, sorted_scales, places, totals


def finalize_routing(
    rows: torch.Tensor, weights: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of each token's ``rows`` [T x topk, H]: [T, H].

    ``weights`` [T, topk]; ``places`` [T x topk] int32 as init routing gave them.
    """
    check = Contract("npu_moe_finalize_routing")
    check.tensor("expanded_permuted_rows", rows, (None, None), *FLOATS)
    check.tensor("scales", weights, (None, None), rows.dtype, torch.float32)
    check.holds(
        rows.shape[0] == weights.numel(),
        "expanded_permuted_rows.shape[0]",
        rows.shape[0],
        f"{weights.numel()}, one for each weight",
    )
    check.tensor("expanded_src_to_dst_row", places, (weights.numel(),), torch.int32)
    summed: torch.Tensor = call(
        "npu_moe_finalize_routing", rows, None, None, None, weights, places, None, drop_pad_mode=2
    )
    return summed
