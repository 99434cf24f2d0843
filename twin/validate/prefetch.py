"""Rules of prefetches: the weight, the op behind which it is issued, and their order."""

from __future__ import annotations

from twin.deployment import Role
from twin.names import (
    consumer,
    layer_chains,
    layer_weights,
    outside_ops,
    outside_weights,
    parse_weight,
)
from twin.schedule import Prefetch, Schedule
from twin.validate.rules import require


def check_prefetches(schedule: Schedule) -> None:
    """Every prefetch of every role.

    Raises:
        InputError: see :func:`twin.validate.validate_schedule`.
    """
    default = schedule.deployment.attention_role
    seen: dict[tuple[Role, str], str] = {}
    for place, prefetch in enumerate(schedule.prefetch):
        field = f"prefetch[{place}]"
        role = prefetch.role or default
        roles = sorted(schedule.deployment.roles)
        require(role in roles, f"{field}.role", role, f"one of {roles}")
        _check_one(schedule, field, role, prefetch)
        # A layer's weight has one prefetch, whether that layer issues it or the one before.
        use = (role, parse_weight(prefetch.weight).weight)
        require(
            use not in seen,
            f"{field}.weight",
            prefetch.weight,
            f"every weight once a role; {seen.get(use)} brings it already",
        )
        seen[use] = field


def _check_one(schedule: Schedule, field: str, role: Role, prefetch: Prefetch) -> None:
    deployment, next_n = schedule.deployment, schedule.workload.next_n
    require(prefetch.bytes > 0, f"{field}.bytes", prefetch.bytes, "a size above 0")
    name = parse_weight(prefetch.weight)
    in_layer = layer_weights(deployment, role)
    outside = () if name.is_next else outside_weights(role, next_n)
    require(
        name.weight in in_layer or name.weight in outside,
        f"{field}.weight",
        prefetch.weight,
        f"a weight of a {role} die: {', '.join((*in_layer, *outside_weights(role, next_n)))}; "
        "next. before a layer's weight means the following layer's",
    )
    moe_apart = any("moe" in stage.streams for stage in schedule.stages)
    chains = layer_chains(deployment, role, moe_apart=moe_apart)
    ops = tuple(dict.fromkeys(op for chain in chains for op in chain))
    behind = outside_ops(deployment, next_n) if name.weight in outside else ()
    known = (*ops, *behind)
    require(
        prefetch.after in known,
        f"{field}.after",
        prefetch.after,
        f"an op of a {role} die: {', '.join(known)}",
    )
    if name.is_next:
        return
    for order in (behind,) if behind else chains:
        reader = _last_reader(order, name.weight)
        if reader is None or prefetch.after not in order:
            continue  # ops beside each other have no order
        hint = f" (or next.{name.weight})" if name.weight in in_layer else ""
        require(
            order.index(prefetch.after) < order.index(reader),
            f"{field}.after",
            prefetch.after,
            f"an op before {reader}, which reads {name.weight}{hint}",
        )


def _last_reader(order: tuple[str, ...], weight: str) -> str | None:
    """The last op in ``order`` that reads ``weight``; every MTP pass (mtp.N.) reads the same."""
    reader = consumer(weight)
    readers = [
        op
        for op in order
        if (op == reader and not weight.startswith("mtp."))
        or (op.startswith("mtp.") and op.split(".", 2)[2] == reader)
    ]
    return readers[-1] if readers else None
