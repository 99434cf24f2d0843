"""An AFD schedule on another transport, with what that transport cannot have taken out."""

from __future__ import annotations

from dataclasses import replace

from twin.deployment import Deployment, Role, Transport
from twin.names import MOE_INPUT, MOE_OPS, ROUTED_HERE_OPS, layer_chains
from twin.schedule import CoreLimit, Prefetch, Schedule

_ROUTER_AFTER = "attention.0.o_proj"
"""Where the colocated recipe prefetches the router; attention dies do under direct."""

_AROUND_TRANSFERS: dict[Role, tuple[str, ...]] = {
    "attention": (MOE_INPUT, *ROUTED_HERE_OPS, "afd.send", "afd.wait", "afd.recv"),
    "ffn": ("afd.recv", *MOE_OPS, "afd.send"),
}
"""Ops of the roles that some transport has there, in issue order."""


def transport_op(deployment: Deployment, role: Role, op: str) -> str:
    """``op``, or where the transport has it elsewhere the last op before it that is there."""
    present = {name for chain in layer_chains(deployment, role) for name in chain}
    every = _AROUND_TRANSFERS.get(role, ())
    if op in present or op not in every:
        return op
    return [name for name in every[: every.index(op)] if name in present][-1]


def with_transport(schedule: Schedule, transport: Transport) -> Schedule:
    """The same on ``transport``.

    Core limits of transfers go where they hold none.  Where the router changes roles, so does
    its prefetch; other prefetches stay, behind the last op before theirs that is still there.
    """
    deployment = schedule.deployment
    if deployment.afd is None or deployment.afd.transport == transport:
        return schedule
    afd = replace(deployment.afd, transport=transport)
    changed = replace(schedule, deployment=replace(deployment, afd=afd))
    if not afd.holds_cores:
        changed = replace(
            changed,
            stages=tuple(
                replace(stage, streams={**stage.streams, "link": CoreLimit()})
                for stage in changed.stages
            ),
        )
    moved = [_moved(changed, prefetch) for prefetch in changed.prefetch]
    return replace(changed, prefetch=tuple(moved))


def _moved(schedule: Schedule, prefetch: Prefetch) -> Prefetch:
    deployment = schedule.deployment
    role = prefetch.role or deployment.attention_role
    weight = prefetch.weight.removeprefix("next.")
    if weight == "moe.router" and role != deployment.router_role:
        if deployment.is_direct:
            return replace(prefetch, role=None, weight=weight, after=_ROUTER_AFTER)
        return replace(prefetch, role="ffn", weight="next.moe.router", after="moe.gmm2")
    return replace(prefetch, after=transport_op(deployment, role, prefetch.after))
