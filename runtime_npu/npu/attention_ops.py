"""Attention: prologs, paged scores, and the merge of parts.

T counts token rows.  A paged cache is two tensors, the latent [blocks, block tokens, 1, kv
rank] and the rope part [blocks, block tokens, 1, rope].  Slots are block x block tokens +
offset, -1 for a row that is not kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from runtime_npu.npu.contract import Contract, call
from runtime_npu.npu.forms import Lengths
from runtime_npu.npu.vector_ops import FLOATS
from twin.validate.deployment import MERGE_WIDTH_RANGE, MERGE_WIDTH_STEP, MOST_PARTS

LAYOUT = "TND_NTD"
"""Queries [T, heads, width], output [heads, T, width]: as the product behind it reads it."""

PAGED = "PA_BSND"
BLOCK_STEP = 16
"""Tokens of a cache block come in multiples of this."""

UPDATE_WITHOUT_LSE = 0
MASK = (2048, 2048)
"""Shape of the mask that the kernel moves along the diagonal: true above it, bool."""

NO_MASK = 0
RIGHT_DOWN_CAUSAL = 3
ROPE_WIDTHS = (64,)


def mla_prolog(
    x: torch.Tensor,
    q_a: torch.Tensor,
    q_b: torch.Tensor,
    uk: torch.Tensor,
    kv_a: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    sin: torch.Tensor,
    cos: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    epsilon: float,
    q_scale: float,
    kv_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Absorbed queries ([T, heads, kv rank], [T, heads, rope]); the rows' KV goes to the cache.

    ``x`` [T, H]; ``q_a`` [H, q rank], ``q_b`` [q rank, heads x (nope + rope)], ``uk`` [heads,
    nope, kv rank], ``kv_a`` [H, kv rank + rope]; norms [q rank], [kv rank]; ``sin`` and ``cos``
    [T, rope]; ``slots`` [T] int64.  ``q_scale`` multiplies the query latent behind its norm,
    ``kv_scale`` the normed KV latent before the cache.
    """
    check = Contract("npu_mla_prolog_v3")
    check.tensor("token_x", x, (None, None), *FLOATS)
    rows, hidden = x.shape
    check.tensor("weight_uk", uk, (None, None, None), x.dtype)
    heads, nope, kv_rank = uk.shape
    check.tensor("rope_sin", sin, (rows, None), x.dtype)
    rope = sin.shape[1]
    check.tensor("rope_cos", cos, (rows, rope), x.dtype)
    check.tensor("weight_dq", q_a, (hidden, None), x.dtype)
    check.tensor("weight_uq_qr", q_b, (q_a.shape[1], heads * (nope + rope)), x.dtype)
    check.tensor("weight_dkv_kr", kv_a, (hidden, kv_rank + rope), x.dtype)
    check.tensor("rmsnorm_gamma_cq", q_norm, (q_a.shape[1],), x.dtype)
    check.tensor("rmsnorm_gamma_ckv", kv_norm, (kv_rank,), x.dtype)
    _check_cache(check, latent_cache, rope_cache, kv_rank, rope, x.dtype)
    check.tensor("cache_index", slots, (rows,), torch.int64)
    latent, rotated, *_ = call(
        "npu_mla_prolog_v3",
        x,
        q_a,
        q_b,
        uk,
        kv_a,
        q_norm,
        kv_norm,
        sin,
        cos,
        latent_cache,
        rope_cache,
        cache_index=slots,
        rmsnorm_epsilon_cq=epsilon,
        rmsnorm_epsilon_ckv=epsilon,
        cache_mode=PAGED,
        qc_qr_scale=q_scale,
        kc_scale=kv_scale,
    )
    return latent, rotated


def paged_attention(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    block_table: torch.Tensor,
    last_rows: Lengths,
    kv_lengths: Lengths,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Absorbed attention over pages: ([heads, T, kv rank], log-sum-exp [T, heads, 1] fp32).

    ``q_latent`` [T, heads, kv rank], ``q_rope`` [T, heads, rope]; ``block_table`` [S, blocks]
    int32.  ``last_rows`` counts, for each sequence, the rows up to its last; ``kv_lengths`` are
    its tokens in the cache.  Both are numbers, or where a graph must take any lengths, [S] int64
    on the device.  With a ``mask`` (:data:`MASK`) the last row of a sequence sees all of its
    tokens, each row before it one less; without one each row sees them all.  The log-sum-exp is
    empty unless asked for.
    """
    check = Contract("npu_fused_infer_attention_score_v2")
    check.tensor("query", q_latent, (None, None, None), *FLOATS)
    rows, heads, kv_rank = q_latent.shape
    check.tensor("query_rope", q_rope, (rows, heads, None), q_latent.dtype)
    _check_cache(check, latent_cache, rope_cache, kv_rank, q_rope.shape[2], q_latent.dtype)
    check.tensor("block_table", block_table, (len(last_rows), None), torch.int32)
    if mask is not None:
        check.tensor("atten_mask", mask, MASK, torch.bool)
    operator = call
    if isinstance(last_rows, torch.Tensor) and isinstance(kv_lengths, torch.Tensor):
        check.tensor("actual_seq_qlen", last_rows, (None,), torch.int64)
        check.tensor("actual_seq_kvlen", kv_lengths, last_rows.shape, torch.int64)
        operator = _with_lengths_on_device
    else:
        # Tokens may be symbols: numbers that change from step to step.
        ends = [int(x) for x in last_rows]
        _check_last_rows(check, ends, rows)
        last_rows, kv_lengths = ends, list(kv_lengths)
        check.holds(
            len(kv_lengths) == len(last_rows),
            "actual_seq_kvlen",
            kv_lengths,
            f"{len(last_rows)} lengths",
        )
    output, lse = operator(
        "npu_fused_infer_attention_score_v2",
        q_latent,
        latent_cache,
        latent_cache,
        query_rope=q_rope,
        key_rope=rope_cache,
        block_table=block_table,
        atten_mask=mask,
        sparse_mode=NO_MASK if mask is None else RIGHT_DOWN_CAUSAL,
        actual_seq_qlen=last_rows,
        actual_seq_kvlen=kv_lengths,
        num_query_heads=heads,
        num_key_value_heads=1,
        softmax_scale=scale,
        input_layout=LAYOUT,
        block_size=latent_cache.shape[1],
        return_softmax_lse=with_lse,
    )
    return output, lse


def _with_lengths_on_device(op: str, *args: object, **kwargs: object) -> Any:
    """Torchair's form of an op, whose lengths are tensors."""
    return getattr(import_module("torchair.ops"), op)(*args, **kwargs)


def causal_attention(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    last_rows: Sequence[int],
    *,
    scale: float,
) -> torch.Tensor:
    """Prefill's attention, each row over the rows of its sequence up to its own: [T, heads, v].

    ``q_nope`` and ``k_nope`` [T, heads, nope], ``q_rope`` and ``k_rope`` [T, heads, rope],
    ``values`` [T, heads, v]; ``mask`` (:data:`MASK`) says which keys a row must not see.
    ``last_rows`` counts, for each sequence, the rows up to its last.
    """
    check = Contract("npu_fused_infer_attention_score_v2")
    check.tensor("query", q_nope, (None, None, None), *FLOATS)
    rows, heads, nope = q_nope.shape
    check.tensor("query_rope", q_rope, (rows, heads, None), q_nope.dtype)
    check.tensor("key", k_nope, (rows, heads, nope), q_nope.dtype)
    check.tensor("key_rope", k_rope, (rows, heads, q_rope.shape[2]), q_nope.dtype)
    check.tensor("value", values, (rows, heads, None), q_nope.dtype)
    check.tensor("atten_mask", mask, MASK, torch.bool)
    _check_last_rows(check, last_rows, rows)
    output: torch.Tensor = call(
        "npu_fused_infer_attention_score_v2",
        q_nope,
        k_nope,
        values,
        query_rope=q_rope,
        key_rope=k_rope,
        atten_mask=mask,
        actual_seq_qlen=list(last_rows),
        actual_seq_kvlen=list(last_rows),
        num_query_heads=heads,
        num_key_value_heads=heads,
        softmax_scale=scale,
        input_layout="TND",
        sparse_mode=RIGHT_DOWN_CAUSAL,
    )[0]
    return output


def interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The pairs of ``x`` [T, heads, rope] turned, first halves before second ones.

    ``cos`` and ``sin`` are [T, rope].  The order of a head's elements is the one that
    :func:`kv_rmsnorm_rope_cache` gives its keys.
    """
    check = Contract("npu_interleave_rope")
    check.tensor("x", x, (None, None, None), *FLOATS)
    rows, _, rope = x.shape
    check.one_of("x.shape[2]", rope, *ROPE_WIDTHS)
    check.tensor("cos", cos, (rows, rope), x.dtype)
    check.tensor("sin", sin, (rows, rope), x.dtype)
    by_row = (rows, 1, 1, rope)
    turned: torch.Tensor = call(
        "npu_interleave_rope", x.unsqueeze(2), cos.view(by_row), sin.view(by_row)
    )
    return turned.squeeze(2)


def _check_last_rows(check: Contract, last_rows: Sequence[int], rows: int) -> None:
    check.holds(
        list(last_rows) == sorted(set(last_rows)) and list(last_rows[-1:]) == [rows],
        "actual_seq_qlen",
        list(last_rows),
        f"ascending, the last one {rows} (the rows)",
    )


def attention_update(outputs: Sequence[torch.Tensor], lse: Sequence[torch.Tensor]) -> torch.Tensor:
    """Attention over all tokens [N, width] from that over parts: [N, width] each, lse [N] fp32."""
    check = Contract("npu_attention_update")
    check.within("parts", len(outputs), 1, MOST_PARTS)
    check.holds(len(lse) == len(outputs), "lse", len(lse), f"{len(outputs)}, as many as parts")
    check.tensor("local_out[0]", outputs[0], (None, None), *FLOATS, torch.float32)
    rows, width = outputs[0].shape
    check.within("local_out[0].shape[1]", width, *MERGE_WIDTH_RANGE)
    check.divides("local_out[0].shape[1] step", MERGE_WIDTH_STEP, width, "columns")
    for part, (output, sums) in enumerate(zip(outputs, lse, strict=True)):
        check.tensor(f"local_out[{part}]", output, (rows, width), outputs[0].dtype)
        check.tensor(f"lse[{part}]", sums, (rows,), torch.float32)
    merged: torch.Tensor = call(
        "npu_attention_update", list(lse), list(outputs), UPDATE_WITHOUT_LSE
    )[0]
    return merged


def kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    rope_cache: torch.Tensor,
    latent_cache: torch.Tensor,
    *,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefill's KV, which also goes to the cache.

    ``kv`` [T, 1, 1, kv rank + rope]; ``gamma`` [kv rank], with the model's KV scale in it;
    ``cos`` and ``sin`` [T, 1, 1, rope]; ``slots`` [T] int64.  Returns the rotated part [T, 1,
    1, rope] and the latent [T, 1, 1, kv rank].
    """
    check = Contract("npu_kv_rmsnorm_rope_cache")
    check.tensor("gamma", gamma, (None,), *FLOATS)
    check.tensor("cos", cos, (None, 1, 1, None), gamma.dtype)
    rows, rope, kv_rank = cos.shape[0], cos.shape[3], gamma.shape[0]
    check.tensor("sin", sin, cos.shape, gamma.dtype)
    check.tensor("kv", kv, (rows, 1, 1, kv_rank + rope), gamma.dtype)
    check.tensor("index", slots, (rows,), torch.int64)
    _check_cache(check, latent_cache, rope_cache, kv_rank, rope, gamma.dtype)
    _, _, rotated, latent = call(
        "npu_kv_rmsnorm_rope_cache",
        kv,
        gamma,
        cos,
        sin,
        slots,
        rope_cache,
        latent_cache,
        epsilon=epsilon,
        cache_mode="PA",
        is_output_kv=True,
    )
    return rotated, latent


def _check_cache(
    check: Contract,
    latent: torch.Tensor,
    rope: torch.Tensor,
    kv_rank: int,
    rope_width: int,
    dtype: torch.dtype,
) -> None:
    check.tensor("kv_cache", latent, (None, None, 1, kv_rank), dtype)
    blocks, tokens = latent.shape[:2]
    check.tensor("kr_cache", rope, (blocks, tokens, 1, rope_width), dtype)
    check.divides("block_size", BLOCK_STEP, tokens, "tokens of a block")
