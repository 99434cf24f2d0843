"""The AFD plugin's configuration and flags to a schedule.

Rules are those of its synchronous connector (camp2p): attention ranks are a multiple of FFN
ranks, the gate runs on FFN dies, one batch or exactly two micro-batches, transfers on vector
cores.  Captured graphs are the twin's ``npugraph_ex``.
"""

from __future__ import annotations

from dataclasses import replace

from hardware_models.errors import InputError
from twin.deployment import Afd, Deployment, RoleDeployment
from twin.launch.beside import Beside
from twin.launch.imported import Imported, checked
from twin.launch.plugin_flags import Command, read_commands
from twin.launch.plugin_keys import (
    AfdConfig,
    CompilationConfig,
    PluginSettings,
    SpeculativeConfig,
    afd_config,
)
from twin.launch.recipe_plan import recipe_stages
from twin.schedule import FORMAT, CoreLimit, Schedule, Stage
from twin.schema import load_dataclass
from twin.workload import Workload

_TP = "--tensor-parallel-size"
_DP = "--data-parallel-size"
_SEQUENCES = "--max-num-seqs"
_KEYS = (
    ("attention.o_proj_tp", _TP),
    ("attention.dense_tp", _TP),
    ("attention.lm_head_tp", _TP),
    ("attention.embed_tp", _TP),
    ("attention.attention_tp", _TP),
    ("attention.dies", "afd.num_attention_ranks"),
    ("ffn.ep", "afd.num_ffn_ranks"),
    ("ffn.dies", "afd.num_ffn_ranks"),
    ("deployment.roles", "afd.num_attention_ranks"),
    ("micro_batches", "--ubatch-size"),
    ("workload.global_batch", _SEQUENCES),
    ("workload.next_n", "--speculative-config"),
    ("workload.kv_tokens", "kv_tokens"),
    ("workload.acceptance", "acceptance"),
    ("stages[0].streams.link.aiv", "afd.connector_extra_config.attn_core_num"),
    ("stages[1].streams.link.aiv", "afd.connector_extra_config.ffn_core_num"),
)


def import_plugin(text: str, source: str, beside: Beside, flags: str | None = None) -> Imported:
    """The decode schedule that the plugin's commands launch.

    ``text`` is one or two commands, or one additional configuration as JSON with its ``flags``.

    Raises:
        InputError: an unknown flag or key, a wrong type or value, commands that contradict
            each other; names the file and the key.
    """
    commands = read_commands(text, source, flags)
    settings = plugin_settings(commands, source)
    schedule = plugin_schedule(settings, beside)
    assumed: dict[str, object] = {
        **beside.as_data(),
        "acceptance": schedule.workload.acceptance,
    }
    if _leaves_graph_open(commands, source):
        assumed["cudagraph_mode"] = "FULL_DECODE_ONLY"
    notes = _not_modelled(commands, settings, source)
    return checked(Imported(schedule=schedule, assumed=assumed, not_modelled=notes), _KEYS, source)


def plugin_schedule(settings: PluginSettings, beside: Beside) -> Schedule:
    """The schedule that settings launch; its rules are not checked."""
    tp = settings.tensor_parallel
    attention = RoleDeployment(
        dies=settings.attention_ranks,
        attention_tp=tp,
        o_proj_tp=tp,
        dense_tp=tp,
        lm_head_tp=tp,
        embed_tp=tp,
    )
    ffn = RoleDeployment(dies=settings.ffn_ranks, ep=settings.ffn_ranks)
    limits = {"attention": settings.attention_cores, "ffn": settings.ffn_cores}
    return Schedule(
        format=FORMAT,
        model=beside.model,
        workload=Workload(
            phase="decode",
            global_batch=settings.groups * settings.max_num_seqs,
            kv_tokens=beside.kv_tokens,
            next_n=settings.next_n,
            acceptance=beside.acceptance_for(settings.next_n),
            expert_load=beside.expert_load,
        ),
        deployment=Deployment(
            hardware=beside.hardware,
            quantisation=beside.quantisation,
            graph_mode="npugraph_ex" if settings.is_graph else "eager",
            roles={"attention": attention, "ffn": ffn},
            afd=Afd(transport="camp2p", micro_batches=settings.micro_batches),
        ),
        stages=tuple(
            _with_link_cores(stage, limits[stage.role]) for stage in recipe_stages(1, is_afd=True)
        ),
    )


def _with_link_cores(stage: Stage, aiv: int | None) -> Stage:
    return replace(stage, streams={**stage.streams, "link": CoreLimit(aiv=aiv)})


def plugin_settings(commands: list[Command], source: str) -> PluginSettings:
    """What the commands decide.

    Raises:
        InputError: no attention role, a role twice, a missing flag, a broken rule.
    """
    roles: dict[str, tuple[Command, AfdConfig]] = {}
    for command in commands:
        afd = afd_config(command, source)
        if afd.role in roles:
            raise InputError("afd.role", afd.role, "a command for each role once", source)
        roles[afd.role] = (command, afd)
    if "attention" not in roles:
        allowed = "attention: its command holds the batch (the ffn role's may stand beside it)"
        raise InputError("afd.role", "ffn", allowed, source)
    command, afd = roles["attention"]
    settings = _attention(command, afd, source)
    if "ffn" not in roles:
        return settings
    return _agreed(settings, afd, *roles["ffn"], source)


def _attention(command: Command, afd: AfdConfig, source: str) -> PluginSettings:
    tp = _number(command, _TP, 1, source)
    ranks = afd.num_attention_ranks
    if ranks % tp:
        raise InputError(_TP, tp, f"a divisor of num_attention_ranks ({ranks})", source)
    dp = _number(command, _DP, ranks // tp, source)
    if dp * tp != ranks:
        allowed = f"{ranks // tp}: num_attention_ranks ({ranks}) / {_TP} ({tp})"
        raise InputError(_DP, dp, allowed, source)
    if _SEQUENCES not in command.flags:
        raise InputError(_SEQUENCES, "nothing (the flag is missing)", "a number from 1", source)
    extra = afd.connector_extra_config
    settings = PluginSettings(
        attention_ranks=ranks,
        ffn_ranks=afd.num_ffn_ranks,
        max_num_seqs=_number(command, _SEQUENCES, 1, source),
        tensor_parallel=tp,
        is_graph=_is_graph(command, source),
        next_n=_next_n(command, source),
        attention_cores=extra.attn_core_num,
        ffn_cores=extra.ffn_core_num,
    )
    budget = _number(command, "--max-num-batched-tokens", settings.tokens, source)
    if budget < settings.tokens:
        allowed = f"at least {settings.tokens}, the tokens of a full batch's step"
        raise InputError("--max-num-batched-tokens", budget, allowed, source)
    sizes = _capture_sizes(command, source)
    if settings.is_graph and sizes and max(sizes) < settings.tokens:
        allowed = f"a size from {settings.tokens}: a larger batch runs without a graph"
        raise InputError("cudagraph_capture_sizes", list(sizes), allowed, source)
    return replace(settings, micro_batches=_micro_batches(command, settings.tokens, source))


def _agreed(
    settings: PluginSettings, first: AfdConfig, command: Command, afd: AfdConfig, source: str
) -> PluginSettings:
    """The settings, once the FFN role's command says nothing else."""
    for name in ("num_attention_ranks", "num_ffn_ranks", "host", "port", "connector"):
        expected, value = getattr(first, name), getattr(afd, name)
        if expected != value:
            allowed = f"{expected}, as in the attention role's command"
            raise InputError(f"afd.{name}", value, allowed, source)
    one, other = first.connector_extra_config, afd.connector_extra_config
    for name in ("attn_core_num", "ffn_core_num", "quant_mode"):
        expected, value = getattr(one, name), getattr(other, name)
        if expected is not None and value is not None and expected != value:
            allowed = f"{expected}, as in the attention role's command"
            raise InputError(f"afd.connector_extra_config.{name}", value, allowed, source)
    ranks = _number(command, _DP, settings.ffn_ranks, source)
    ranks *= _number(command, _TP, 1, source)
    if ranks != settings.ffn_ranks:
        raise InputError(_DP, ranks, f"{settings.ffn_ranks}, as num_ffn_ranks", source)
    if _is_graph(command, source) != settings.is_graph:
        shown = "a graph" if settings.is_graph else "no graph"
        field = "--compilation-config"
        raise InputError(field, "another mode", f"{shown}, as in attention's command", source)
    parts = 2 if command.flags.get("--enable-dbo") else 1
    if parts != settings.micro_batches and "--dbo-decode-token-threshold" not in command.flags:
        allowed = f"{settings.micro_batches} micro-batches, as in the attention role's command"
        raise InputError("--enable-dbo", parts, allowed, source)
    return replace(
        settings,
        attention_cores=one.attn_core_num or other.attn_core_num,
        ffn_cores=other.ffn_core_num or one.ffn_core_num,
    )


def _leaves_graph_open(commands: list[Command], source: str) -> bool:
    return all(
        "--enforce-eager" not in command.flags and compilation_config(command, source) is None
        for command in commands
    )


def _number(command: Command, flag: str, default: int, source: str) -> int:
    value = command.flags.get(flag, default)
    assert isinstance(value, int)
    if value < 1:
        raise InputError(flag, value, "a whole number from 1", source)
    return value


def _is_graph(command: Command, source: str) -> bool:
    config = compilation_config(command, source)
    mode = "FULL_DECODE_ONLY" if config is None else config.cudagraph_mode
    if command.flags.get("--enforce-eager"):
        if config is not None and mode != "NONE":
            allowed = "cudagraph_mode NONE, or none, with --enforce-eager"
            raise InputError("--compilation-config", mode, allowed, source)
        return False
    return mode != "NONE"


def compilation_config(command: Command, source: str) -> CompilationConfig | None:
    """The checked ``--compilation-config``.

    Raises:
        InputError: an unknown key, a wrong type or value.
    """
    data = command.flags.get("--compilation-config")
    if data is None:
        return None
    config = load_dataclass(CompilationConfig, data, source)
    for size in config.cudagraph_capture_sizes or ():
        if size < 1:
            raise InputError("cudagraph_capture_sizes", size, "whole numbers from 1", source)
    return config


def _capture_sizes(command: Command, source: str) -> tuple[int, ...]:
    config = compilation_config(command, source)
    return (config.cudagraph_capture_sizes or ()) if config is not None else ()


def _next_n(command: Command, source: str) -> int:
    data = command.flags.get("--speculative-config")
    if data is None:
        return 0
    drafts = load_dataclass(SpeculativeConfig, data, source).num_speculative_tokens
    if drafts not in (1, 2):
        raise InputError("num_speculative_tokens", drafts, "1 or 2", source)
    return drafts


def _micro_batches(command: Command, tokens: int, source: str) -> int:
    parts = command.flags.get("--ubatch-size")
    if not command.flags.get("--enable-dbo"):
        if parts not in (None, 1):
            raise InputError("--ubatch-size", parts, "1 without --enable-dbo", source)
        return 1
    if parts not in (None, 2):
        raise InputError("--ubatch-size", parts, "2 with --enable-dbo", source)
    threshold = command.flags.get("--dbo-decode-token-threshold", 0)
    assert isinstance(threshold, int)
    return 2 if tokens >= threshold else 1


def _not_modelled(
    commands: list[Command], settings: PluginSettings, source: str
) -> tuple[str, ...]:
    found = []
    for command in commands:
        afd = afd_config(command, source)
        if afd.connector_extra_config.quant_mode:
            found.append(
                f"{afd.role}: quant_mode; transfers are simulated in the activations' type"
            )
        if afd.role != "attention" or not settings.is_graph:
            continue
        sizes = [size for size in _capture_sizes(command, source) if size >= settings.tokens]
        if sizes and min(sizes) > settings.tokens:
            found.append(
                f"cudagraph_capture_sizes: {settings.tokens} tokens are padded to {min(sizes)}; "
                "the batch itself is simulated"
            )
        if command.flags.get("--enable-dbo") and settings.micro_batches == 1:
            found.append("--enable-dbo: below its token threshold, so one batch is simulated")
    return tuple(found)
