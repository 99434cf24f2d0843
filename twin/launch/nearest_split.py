"""The legal number of dies nearest to an asked one, where a target knows fewer splits."""

from __future__ import annotations

from collections.abc import Callable

from hardware_models.errors import InfeasibleError
from twin.deployment import RoleDeployment
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

_SIZES = ("attention_tp", "o_proj_tp", "dense_tp", "lm_head_tp", "embed_tp")


def nearest_dies(
    schedule: Schedule, model: ModelSpec, role: RoleDeployment, legal: Callable[[int, int], bool]
) -> tuple[int, int]:
    """Attention and FFN dies nearest to the schedule's, on at most as many dies.

    Colocated dies count for both.  ``role`` has the parallel sizes that the target can say;
    they have to divide the attention dies, and the FFN dies the routed experts (no target
    here copies experts).  ``legal(attention, ffn)`` is the target's own rule.

    Raises:
        InfeasibleError: no split is legal.
    """
    deployment = schedule.deployment
    asked = (deployment.attention.dies, deployment.moe.dies)
    total = deployment.total_dies
    batch = schedule.workload.global_batch

    def fits(attention: int, ffn: int) -> bool:
        return (
            model.n_routed_experts % ffn == 0
            and all(attention % getattr(role, size) == 0 for size in _SIZES)
            and attention % role.group_dies == 0
            and attention // role.group_dies <= batch
            and legal(attention, ffn)
        )

    splits: list[tuple[int, int]]
    if deployment.is_afd:
        splits = [
            (attention, ffn)
            for ffn in range(1, total)
            if model.n_routed_experts % ffn == 0
            for attention in range(1, total - ffn + 1)
        ]
    else:
        splits = [(dies, dies) for dies in range(1, total + 1)]
    found = [split for split in splits if fits(*split)]
    if not found:
        raise InfeasibleError(
            f"no split of {total} dies or fewer: the experts ({model.n_routed_experts}) have to "
            f"divide over the FFN dies, {batch} sequences have to reach every attention group"
        )
    # The same number of dies first, then the ratio: dies that stand idle are paid for.
    return min(found, key=lambda split: _distance(split, asked))


def _distance(split: tuple[int, int], asked: tuple[int, int]) -> tuple[int, int]:
    missing = sum(asked) - sum(split)
    return missing, abs(split[0] - asked[0])
