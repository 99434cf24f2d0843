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
    default: Role = "attention" if schedule.deployment.is_afd else "colocated"
    seen: set[tuple[Role, str]] = set()
    for place, prefetch in enumerate(schedule.prefetch):
        field = f"prefetch[{place}]"
        role = prefetch.role or default
        roles = sorted(schedule.deployment.roles)
        require(role in roles, f"{field}.role", role, f"one of {roles}")
        _check_one(schedule, field, role, prefetch)
        use = (role, prefetch.weight)
        require(use not in seen, f"{field}.weight", prefetch.weight, "every weight once a role")
        seen.add(use)


def _check_one(schedule: Schedule, field: str, role: Role, prefetch: Prefetch) -> None:
    deployment, next_n = schedule.deployment, schedule.workload.next_n
    require(prefetch.bytes > 0, f"{field}.bytes", prefetch.bytes, "a size above 0")
    name = parse_weight(prefetch.weight)
    in_layer = layer_weights(role)
    outside = () if name.is_next else outside_weights(role, next_n)
    require(
        name.weight in in_layer or name.weight in outside,
        f"{field}.weight",
        prefetch.weight,
        f"a weight of a {role} die: {', '.join((*in_layer, *outside_weights(role, next_n)))}; "
        "next. before a layer's weight means the following layer's",
    )
    chains = layer_chains(deployment, role)
    ops = tuple(dict.fromkeys(op for chain in chains for op in chain))
    behind = outside_ops(deployment, next_n) if role != "ffn" else ()
    require(
        prefetch.after in ops or (name.weight in outside and prefetch.after in behind),
        f"{field}.after",
        prefetch.after,
        f"an op of a {role} die: {', '.join(ops)}",
    )
    if name.is_next or name.weight not in in_layer:
        return
    reader = consumer(name.weight)
    comes_later = any(
        prefetch.after in chain
        and reader in chain
        and chain.index(prefetch.after) < chain.index(reader)
        for chain in chains
    )
    beside = not any(prefetch.after in chain and reader in chain for chain in chains)
    require(
        comes_later or beside,
        f"{field}.after",
        prefetch.after,
        f"an op before {reader}, which reads {name.weight} (or next.{name.weight})",
    )
