"""A schedule to the nearest commands of vLLM with the AFD plugin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hardware_models.errors import InputError
from twin.deployment import RoleDeployment
from twin.launch.beside import served_beside_of
from twin.launch.nearest_split import nearest_dies
from twin.launch.plugin import plugin_schedule
from twin.launch.plugin_flags import ADDITIONAL, Command, Value
from twin.launch.plugin_keys import CONNECTOR, PluginSettings, afd_config
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

HOST, PORT = "127.0.0.1", 29500
"""Where the roles meet, where no kept command says it."""
HTTP_PORTS = {"attention": 8000, "ffn": 8001}
"""Ports that the roles serve at, likewise."""

_DBO = ("--enable-dbo", "--ubatch-size", "--dbo-decode-token-threshold")


def nearest_plugin(schedule: Schedule, model: ModelSpec) -> tuple[PluginSettings, Schedule]:
    """The settings nearest to a schedule, and the schedule that they launch.

    Raises:
        InputError: the schedule is colocated, or not one of decode.
        InfeasibleError: no legal split of the dies is near.
    """
    deployment, workload = schedule.deployment, schedule.workload
    if workload.phase != "decode":
        raise InputError("workload.phase", workload.phase, "decode: the connector's graph mode")
    if deployment.afd is None:
        raise InputError(
            "deployment.roles",
            sorted(deployment.roles),
            "attention and ffn: the plugin only runs disaggregated (target=recipe for colocated)",
        )
    tp = deployment.attention.attention_tp
    role = RoleDeployment(
        dies=tp, attention_tp=tp, o_proj_tp=tp, dense_tp=tp, lm_head_tp=tp, embed_tp=tp
    )
    attention, ffn = nearest_dies(
        schedule, model, role, lambda attention, ffn: attention % ffn == 0
    )
    sequences = math.ceil(workload.global_batch / (attention // tp))
    is_camp2p = deployment.afd.transport == "camp2p"
    settings = PluginSettings(
        attention_ranks=attention,
        ffn_ranks=ffn,
        max_num_seqs=sequences,
        tensor_parallel=tp,
        is_graph=deployment.graph_mode != "eager",
        micro_batches=min(2, deployment.afd.micro_batches, sequences),
        next_n=workload.next_n,
        attention_cores=_link_cores(schedule, "attention") if is_camp2p else None,
        ffn_cores=_link_cores(schedule, "ffn") if is_camp2p else None,
    )
    return settings, plugin_schedule(settings, served_beside_of(schedule))


def _link_cores(schedule: Schedule, role: str) -> int | None:
    stages = [stage for stage in schedule.stages if stage.role == role]
    return stages[0].streams["link"].aiv


def plugin_commands(
    settings: PluginSettings, model: str, kept: Sequence[Command] | None, source: str
) -> list[Command]:
    """The commands of the roles with the settings put in.

    ``kept`` are commands (of ``source``) whose other flags and keys stay, and only whose roles
    are written; without them both roles are written in full.
    """
    if kept is None:
        return [
            _command(settings, role, Command((), model, {"--port": port}), complete=True)
            for role, port in HTTP_PORTS.items()
        ]
    return [
        _command(
            settings,
            afd_config(command, source).role,
            command,
            complete=False,
            alone=len(kept) == 1,
        )
        for command in kept
    ]


def _command(
    settings: PluginSettings, role: str, start: Command, *, complete: bool, alone: bool = False
) -> Command:
    flags = dict(start.flags)
    is_attention = role == "attention"
    rows = settings.tokens
    if not is_attention:
        rows *= settings.attention_ranks // settings.ffn_ranks
    tp = settings.tensor_parallel if is_attention else 1
    if complete or "--tensor-parallel-size" in flags or tp != 1:
        flags["--tensor-parallel-size"] = tp
    # Absent, it means all ranks of the role.
    if complete or "--data-parallel-size" in flags:
        flags["--data-parallel-size"] = settings.groups if is_attention else settings.ffn_ranks
    if is_attention:
        flags["--max-num-seqs"] = settings.max_num_seqs
        budget = flags.get("--max-num-batched-tokens")
        if complete or (isinstance(budget, int) and budget < rows):
            flags["--max-num-batched-tokens"] = rows
        _set_drafts(flags, settings)
    _set_graph(flags, settings, rows, complete=complete)
    _set_micro_batches(flags, settings, rows)
    flags[ADDITIONAL] = _additional(flags.get(ADDITIONAL), settings, role, alone=alone)
    return replace(start, flags=flags)


def _set_drafts(flags: dict[str, Value], settings: PluginSettings) -> None:
    flag = "--speculative-config"
    if settings.next_n == 0:
        flags.pop(flag, None)
        return
    before = flags.get(flag, {"method": "mtp"})
    assert isinstance(before, dict)
    flags[flag] = {**before, "num_speculative_tokens": settings.next_n}


def _set_graph(
    flags: dict[str, Value], settings: PluginSettings, rows: int, *, complete: bool
) -> None:
    flag = "--compilation-config"
    before = flags.get(flag)
    assert before is None or isinstance(before, dict)
    if not settings.is_graph:
        if before is not None and before.get("cudagraph_mode") != "NONE":
            del flags[flag]
            before = None
        if before is None:
            flags["--enforce-eager"] = True
        return
    flags.pop("--enforce-eager", None)
    if before is None and not complete:
        return
    config = {**(before or {}), "cudagraph_mode": "FULL_DECODE_ONLY"}
    sizes = config.get("cudagraph_capture_sizes")
    if complete or (isinstance(sizes, list) and max(sizes, default=rows) < rows):
        config["cudagraph_capture_sizes"] = [*(sizes if isinstance(sizes, list) else []), rows]
    flags[flag] = config


def _set_micro_batches(flags: dict[str, Value], settings: PluginSettings, rows: int) -> None:
    threshold = flags.get("--dbo-decode-token-threshold", 0)
    assert isinstance(threshold, int)
    runs_two = bool(flags.get("--enable-dbo")) and rows >= threshold
    if (settings.micro_batches == 2) == runs_two:
        return
    if settings.micro_batches == 1:
        for flag in _DBO:
            flags.pop(flag, None)
        return
    flags.update({"--enable-dbo": True, "--ubatch-size": 2, "--dbo-decode-token-threshold": rows})


def _additional(
    before: Value | None, settings: PluginSettings, role: str, *, alone: bool
) -> dict[str, object]:
    """The section ``afd`` of a role; the other role's core number where it stands ``alone``."""
    kept = before.get("afd", {}) if isinstance(before, dict) else {}
    assert isinstance(kept, dict)
    own = "attn_core_num" if role == "attention" else "ffn_core_num"
    extra = dict(kept.get("connector_extra_config", {}))
    cores = {"attn_core_num": settings.attention_cores, "ffn_core_num": settings.ffn_cores}
    for name, value in cores.items():
        if value is None:
            extra.pop(name, None)
        elif alone or name == own or name in extra:
            extra[name] = value
    afd: dict[str, object] = {
        "role": role,
        "connector": CONNECTOR,
        **({} if before is not None else {"host": HOST, "port": PORT}),
        **kept,
        "num_attention_ranks": settings.attention_ranks,
        "num_ffn_ranks": settings.ffn_ranks,
    }
    if before is None:
        afd["compute_gate_on_attention"] = False
    if extra or "connector_extra_config" in kept:
        afd["connector_extra_config"] = extra
    return {"afd": afd}
