"""The keys of the AFD plugin's configurations, their types, and what a schedule decides in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hardware_models.errors import InputError
from twin.launch.plugin_flags import ADDITIONAL, Command
from twin.schema import load_dataclass

CONNECTOR = "camp2pconnector"
"""The synchronous NPU connector; other connectors have other rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraConfig:
    """``connector_extra_config``: vector cores of the transfers per role, their type."""

    attn_core_num: int | None = None
    ffn_core_num: int | None = None
    quant_mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AfdConfig:
    """The section ``afd`` of one role's additional configuration."""

    role: Literal["attention", "ffn"]
    connector: str
    num_attention_ranks: int
    num_ffn_ranks: int
    host: str | None = None
    port: int | None = None
    compute_gate_on_attention: bool | None = None
    connector_extra_config: ExtraConfig = field(default_factory=ExtraConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionalConfig:
    """``--additional-config``."""

    afd: AfdConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilationConfig:
    """``--compilation-config``; a batch is padded up to the next capture size, in tokens."""

    cudagraph_mode: Literal["FULL_DECODE_ONLY", "NONE"]
    cudagraph_capture_sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """``--speculative-config``."""

    num_speculative_tokens: int
    method: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """What a schedule decides in the two commands.

    ``attention_cores`` and ``ffn_cores`` None leave the connector's default.
    ``max_num_seqs`` counts the sequences of an attention group.
    """

    attention_ranks: int
    ffn_ranks: int
    max_num_seqs: int
    tensor_parallel: int = 1
    is_graph: bool = True
    micro_batches: int = 1
    next_n: int = 0
    attention_cores: int | None = None
    ffn_cores: int | None = None

    @property
    def groups(self) -> int:
        """Attention groups: data-parallel ranks of the attention role."""
        return self.attention_ranks // self.tensor_parallel

    @property
    def tokens(self) -> int:
        """Tokens that an attention group brings into a decode step."""
        return self.max_num_seqs * (1 + self.next_n)


def afd_config(command: Command, source: str) -> AfdConfig:
    """The checked section ``afd`` of a command.

    Raises:
        InputError: missing, an unknown key, a wrong type or value.
    """
    data = command.flags.get(ADDITIONAL)
    if data is None:
        allowed = """a JSON object {"afd": {...}}"""
        raise InputError(ADDITIONAL, "nothing (the flag is missing)", allowed, source)
    afd = load_dataclass(AdditionalConfig, data, source).afd
    extra = afd.connector_extra_config
    rules: tuple[tuple[bool, str, object, str], ...] = (
        (
            afd.connector.lower() in (CONNECTOR, "camp2p"),
            "connector",
            afd.connector,
            f"{CONNECTOR}: the rules of others are not known",
        ),
        (afd.num_ffn_ranks >= 1, "num_ffn_ranks", afd.num_ffn_ranks, "a whole number from 1"),
        (
            afd.num_attention_ranks >= 1
            and afd.num_attention_ranks % max(1, afd.num_ffn_ranks) == 0,
            "num_attention_ranks",
            afd.num_attention_ranks,
            f"a multiple of num_ffn_ranks ({afd.num_ffn_ranks})",
        ),
        (
            not afd.compute_gate_on_attention,
            "compute_gate_on_attention",
            afd.compute_gate_on_attention,
            "false: under this connector the gate runs on the FFN side",
        ),
        (
            afd.port is None or 1 <= afd.port <= 65535,
            "port",
            afd.port,
            "a port from 1 to 65535",
        ),
    )
    for holds, name, value, allowed in rules:
        if not holds:
            raise InputError(f"afd.{name}", value, allowed, source)
    least = {"attn_core_num": 1, "ffn_core_num": 1, "quant_mode": 0}
    for name, low in least.items():
        value = getattr(extra, name)
        if value is not None and value < low:
            key = f"afd.connector_extra_config.{name}"
            raise InputError(key, value, f"a whole number from {low}", source)
    return afd
