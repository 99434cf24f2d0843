"""Rules of the workload."""

from __future__ import annotations

from twin.model_spec import ModelSpec
from twin.validate.rules import require
from twin.workload import Workload

MOST_DRAFTS = 2
"""The MTP layer is trained to draft two tokens."""


def check_workload(workload: Workload, model: ModelSpec) -> None:
    """Batch, lengths and drafts.

    Raises:
        InputError: see :func:`twin.validate.validate_schedule`.
    """
    for name in ("global_batch", "kv_tokens"):
        value = getattr(workload, name)
        require(value >= 1, f"workload.{name}", value, "a whole number from 1")
    next_n = workload.next_n
    require(0 <= next_n <= MOST_DRAFTS, "workload.next_n", next_n, f"0 to {MOST_DRAFTS} drafts")
    require(
        0 <= workload.acceptance <= next_n,
        "workload.acceptance",
        workload.acceptance,
        f"accepted drafts per step, 0 to next_n ({next_n})",
    )
    added = workload.positions - workload.kv_tokens
    require(
        workload.positions <= model.max_position_embeddings,
        "workload.kv_tokens",
        workload.kv_tokens,
        f"at most {model.max_position_embeddings - added}: "
        f"{model.name} has {model.max_position_embeddings} positions",
    )
