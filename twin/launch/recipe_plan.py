"""What the recipe's switches stand for in a schedule: its streams, scopes and prefetches.

Core splits and prefetch places are those of the published decode; see the shipped schedules.
"""

from __future__ import annotations

from twin.deployment import Deployment, Role
from twin.model_spec import ModelSpec
from twin.names import JOIN, MOE_INPUT, NEXT
from twin.schedule import CoreLimit, Prefetch, Stage
from twin.search.changes import present_op
from twin.weights import weight_bytes

SPLITS: dict[int, tuple[CoreLimit, CoreLimit]] = {
    1: (CoreLimit(aic=16, aiv=32), CoreLimit(aic=8, aiv=16)),
    2: (CoreLimit(aic=12, aiv=24), CoreLimit(aic=12, aiv=24)),
}
"""``enable_multi_streams``: limits of stage 2's main and moe stream; 0 is one stream."""

_MIB = 1024**2
_HALF = (("gate_up", "attention.{}.o_proj", 18), ("down", "dense.{}.all_gather", 9))
_LATENTS = (("q_a", 18), ("q_b", 36), ("kv_a", 7))


def recipe_stages(multi_streams: int, *, is_afd: bool) -> tuple[Stage, ...]:
    """The stages of every layer; with AFD both roles compute on one stream without limits."""
    if is_afd:
        streams = {"main": CoreLimit(), "link": CoreLimit()}
        return (
            Stage(name="attention", role="attention", streams=streams, join=JOIN),
            Stage(name="ffn", role="ffn", streams=streams),
        )
    if multi_streams == 0:
        return (Stage(name="serial", streams={"main": CoreLimit()}),)
    main, moe = SPLITS[multi_streams]
    return (
        Stage(name="stage1", ends_after=MOE_INPUT, streams={"main": CoreLimit()}),
        Stage(name="stage2", streams={"main": main, "moe": moe}, join=JOIN),
    )


def recipe_scopes(multi_streams: int, *, is_afd: bool) -> tuple[str, ...]:
    """The SuperKernel scopes: one for each stage, stream and core split."""
    if is_afd:
        return ("attention.main", "ffn.main")
    return ("stage1", "stage2.main", "stage2.moe") if multi_streams else ("serial",)


def recipe_prefetches(model: ModelSpec, deployment: Deployment) -> tuple[Prefetch, ...]:
    """What ``enable_prefetch`` brings to L2, in issue order.

    Attention and dense FFN in the recipe's bytes; on FFN dies of AFD all of w2, half of w13
    and the router.  Without AFD the router goes first.
    """
    role = deployment.attention_role
    found: list[Prefetch] = []

    def add(weight: str, after: str, size: int) -> None:
        place = present_op(deployment, role, after)
        found.append(Prefetch(weight=weight, after=place, bytes=size))

    if not deployment.is_afd:
        add("moe.router", "attention.0.o_proj", 18 * _MIB)
    for half in (0, 1):
        for weight, after, mib in _HALF:
            add(f"dense.{half}.{weight}", after.format(half), mib * _MIB)
        reader = ("attention.1", "dense.0.gate_up") if half == 0 else None
        block, after = reader or (f"{NEXT}attention.0", "dense.1.down")
        for weight, mib in _LATENTS:
            add(f"{block}.{weight}", after, mib * _MIB)
    return (*found, *_ffn_prefetches(model, deployment)) if deployment.is_afd else tuple(found)


def _ffn_prefetches(model: ModelSpec, deployment: Deployment) -> tuple[Prefetch, ...]:
    ffn: Role = "ffn"
    plan = (
        ("moe.w2", "moe.router_matmul", 1),
        ("next.moe.router", "moe.gmm2", 1),
        ("next.moe.w13", "moe.gmm2", 2),
    )
    return tuple(
        Prefetch(
            role=ffn,
            weight=weight,
            after=after,
            bytes=weight_bytes(model, deployment, weight.removeprefix(NEXT)) // share,
        )
        for weight, after, share in plan
    )
