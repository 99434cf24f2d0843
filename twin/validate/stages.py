"""Rules of stages, core limits, graph modes and SuperKernel scopes."""

from __future__ import annotations

import re

from hardware_models.hardware import Hardware
from hardware_models.ops.vector_transfer import DEFAULT_CORES
from twin.deployment import Deployment, Role
from twin.names import COMPUTE_STREAMS, JOIN, is_hccl_collective, main_ops
from twin.schedule import CoreLimit, Schedule, Stage
from twin.validate.rules import require

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def check_stages(schedule: Schedule, hardware: Hardware) -> None:
    """Stages of every role, their streams, limits and scopes.

    Raises:
        InputError: see :func:`twin.validate.validate_schedule`.
    """
    names = [stage.name for stage in schedule.stages]
    for place, stage in enumerate(schedule.stages):
        field = f"stages[{place}]"
        # A scope is a stage's name or stage.stream, so a dot in a name would be ambiguous.
        require(
            _NAME.fullmatch(stage.name) is not None,
            f"{field}.name",
            stage.name,
            "letters, digits, _ and -",
        )
        require(
            names.count(stage.name) == 1, f"{field}.name", stage.name, "a name no other stage has"
        )
        roles = sorted(schedule.deployment.roles)
        require(stage.role in roles, f"{field}.role", stage.role, f"one of {roles}")
    for role in schedule.deployment.roles:
        own = [(f"stages[{i}]", s) for i, s in enumerate(schedule.stages) if s.role == role]
        _check_role(schedule, role, own)
        _check_collectives(schedule, role, own, hardware)
    for place, stage in enumerate(schedule.stages):
        _check_limits(f"stages[{place}]", stage, hardware)
        if "link" in stage.streams:
            _check_link(f"stages[{place}]", stage, schedule.deployment)
    _check_graph_mode(schedule)
    _check_scopes(schedule)


def _check_role(schedule: Schedule, role: Role, own: list[tuple[str, Stage]]) -> None:
    is_prefill = schedule.workload.is_prefill
    most = 2 if role == "colocated" else 1
    require(
        1 <= len(own) <= most, "stages", [s.name for _, s in own], f"1 to {most} for role {role}"
    )
    ops = main_ops(schedule.deployment, role)
    for place, (field, stage) in enumerate(own):
        last = place + 1 == len(own)
        streams = sorted(stage.streams)
        allowed = [["link", "main"]] if role != "colocated" else [["main"]]
        if role == "colocated" and last:
            allowed.append(["link", "main"] if is_prefill else ["main", "moe"])
        require(
            streams in allowed,
            f"{field}.streams",
            streams,
            " or ".join(str(a) for a in allowed),
        )
        if last:
            require(
                stage.ends_after is None, f"{field}.ends_after", stage.ends_after, "null: the last"
            )
        else:
            require(
                stage.ends_after in ops[:-1],
                f"{field}.ends_after",
                stage.ends_after,
                f"a main op of the layer before the last: {', '.join(ops[:-1])}",
            )
        meets = role == "attention" or "moe" in stage.streams
        wanted = JOIN if meets else None
        require(
            stage.join == wanted,
            f"{field}.join",
            stage.join,
            f"{JOIN}, where two streams meet" if meets else "null: no second stream to join",
        )


def _check_collectives(
    schedule: Schedule, role: Role, own: list[tuple[str, Stage]], hardware: Hardware
) -> None:
    """HCCL collectives run on main only, so the MoE branch's limits are free of their minimum."""
    least = hardware.count("collective_min_aiv")
    rest = main_ops(schedule.deployment, role)
    for field, stage in own:
        end = len(rest) if stage.ends_after is None else rest.index(stage.ends_after) + 1
        collectives = [op for op in rest[:end] if is_hccl_collective(op)]
        limit = stage.streams["main"].aiv
        if collectives and limit is not None:
            require(
                limit >= least,
                f"{field}.streams.main.aiv",
                limit,
                f"at least {least}: the HCCL collective {collectives[0]} on this stream runs on "
                "vector cores",
            )
        rest = rest[end:]


def _check_limits(field: str, stage: Stage, hardware: Hardware) -> None:
    for kind in ("aic", "aiv"):
        die = hardware.count(f"{kind}_count")
        total = 0
        for name, limit in stage.streams.items():
            value = getattr(limit, kind)
            if value is None:
                continue
            where = f"{field}.streams.{name}.{kind}"
            require(1 <= value <= die, where, value, f"1 to {die}, the cores of {hardware.name}")
            total += value
        require(
            total <= die,
            f"{field}.streams",
            f"{total} {kind}",
            f"limits that add up to at most {die} {kind} of {hardware.name}",
        )


def _check_link(field: str, stage: Stage, deployment: Deployment) -> None:
    """Cores of AFD transfers: vector ones, where the transport holds any, one a transfer."""
    limit = stage.streams["link"]
    where = f"{field}.streams.link"
    allowed = "no limit: transfers take no cube cores"
    require(limit.aic is None, f"{where}.aic", limit.aic, allowed)
    if deployment.afd is None or not deployment.afd.holds_cores:
        allowed = "no limit: transfers over SDMA take no cores"
        require(limit.aiv is None, f"{where}.aiv", limit.aiv, allowed)
        return
    aiv = DEFAULT_CORES if limit.aiv is None else limit.aiv
    least = deployment.ffn_transfers if stage.role == "ffn" else 1
    require(
        aiv >= least,
        f"{where}.aiv",
        limit.aiv,
        f"at least {least}: one vector core for each attention die that an FFN die serves "
        f"({DEFAULT_CORES} where no limit is set)",
    )


def _check_graph_mode(schedule: Schedule) -> None:
    mode = schedule.deployment.graph_mode
    if mode != "ge_graph":
        scopes = list(schedule.super_kernel)
        require(not scopes, "super_kernel", scopes, f"none in {mode}: only ge_graph fuses launches")
    if mode != "eager":
        return
    for place, stage in enumerate(schedule.stages):
        field = f"stages[{place}].streams"
        require(
            "moe" not in stage.streams, field, sorted(stage.streams), "one compute stream in eager"
        )
        for name, limit in stage.streams.items():
            # camp2p's transfers are told their cores: that is no limit of a stream.
            is_told = name == "link" and not schedule.deployment.is_direct
            is_free = limit == CoreLimit() or is_told
            require(is_free, f"{field}.{name}", limit, "no core limit in eager")
    count = len(schedule.prefetch)
    require(count == 0, "prefetch", f"{count} prefetches", "none in eager: it has one stream")


def _check_scopes(schedule: Schedule) -> None:
    allowed: list[str] = []
    for stage in schedule.stages:
        compute = [name for name in stage.streams if name in COMPUTE_STREAMS]
        # Several streams inside one scope are not recommended, so a stage with two names one.
        allowed += [stage.name] if len(compute) == 1 else []
        allowed += [f"{stage.name}.{name}" for name in compute]
    seen: set[str] = set()
    for place, scope in enumerate(schedule.super_kernel):
        field = f"super_kernel[{place}]"
        require(scope in allowed, field, scope, f"one of {', '.join(allowed)}")
        once = scope.removesuffix(".main") if scope.removesuffix(".main") in allowed else scope
        require(once not in seen, field, scope, "every scope once")
        seen.add(once)
