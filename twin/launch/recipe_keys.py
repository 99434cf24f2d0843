"""The keys of the LongCat recipe's YAML, their types, and which of them a schedule decides."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any

from hardware_models.errors import InputError
from twin.deployment import GraphMode
from twin.schema import load_dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomParams:
    """``model_config.custom_params``: the model's own switches."""

    enable_mla_prolog: bool | None = None
    enable_multi_streams: int | None = None
    enable_prefetch: bool | None = None
    enable_superkernel: bool | None = None
    enable_afd: bool | None = None
    moe_chunk_max_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """``model_config``."""

    exe_mode: GraphMode
    model_name: str | None = None
    model_path: str | None = None
    with_ckpt: bool | None = None
    enable_static_kernel: bool | None = None
    enable_profiler: bool | None = None
    force_eplb: bool | None = None
    enable_cache_compile: bool | None = None
    next_n: int | None = None
    custom_params: CustomParams = field(default_factory=CustomParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """``data_config``: the prompts of a run."""

    dataset: str | None = None
    input_truncated_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """``scheduler_config``; ``batch_size`` counts the sequences of the whole deployment."""

    batch_size: int
    block_size: int | None = None
    max_new_tokens: int | None = None
    max_prefill_tokens: int | None = None
    mem_fraction_static: float | None = None
    num_reserved_decode_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """``parallel_config``; ``world_size`` counts dies.

    ``kvp_size`` is named by the article on the recipe, beside the sizes that it has to equal;
    the published files leave it out.
    """

    world_size: int
    attn_tp_size: int | None = None
    dense_tp_size: int | None = None
    moe_tp_size: int | None = None
    embed_tp_size: int | None = None
    lmhead_tp_size: int | None = None
    o_proj_tp_size: int | None = None
    cp_size: int | None = None
    kvp_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """A whole file; a key that is None is absent (or null)."""

    model_config: ModelConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    data_config: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSettings:
    """What a schedule decides in the recipe's file; the defaults are those of absent keys."""

    exe_mode: GraphMode
    world_size: int
    batch_size: int
    next_n: int = 0
    force_eplb: bool = False
    enable_multi_streams: int = 0
    enable_prefetch: bool = False
    enable_superkernel: bool = False
    enable_afd: bool = False
    attn_tp_size: int = 1
    dense_tp_size: int = 1
    moe_tp_size: int = 1
    embed_tp_size: int = 1
    lmhead_tp_size: int = 1
    o_proj_tp_size: int = 1
    kvp_size: int = 1


_CUSTOM = "model_config.custom_params"
_SECTIONS = {
    "exe_mode": "model_config",
    "next_n": "model_config",
    "force_eplb": "model_config",
    "batch_size": "scheduler_config",
    **dict.fromkeys(
        ("enable_multi_streams", "enable_prefetch", "enable_superkernel", "enable_afd"), _CUSTOM
    ),
}
_UNPUBLISHED = ("kvp_size",)
_MAY_BE_ZERO = ("num_reserved_decode_tokens",)


def key_of(setting: str) -> str:
    """Where a setting stands: ``dense_tp_size`` -> ``parallel_config.dense_tp_size``."""
    return f"{_SECTIONS.get(setting, 'parallel_config')}.{setting}"


def read_recipe(data: object, source: str) -> RecipeFile:
    """The file that plain ``data`` spells, its keys and types checked.

    Raises:
        InputError: an unknown or missing key, a wrong type; names ``source`` and the key.
    """
    return load_dataclass(RecipeFile, data, source)


def settings_of(file: RecipeFile) -> RecipeSettings:
    """The decided settings of a file; absent keys have their defaults."""
    given = {}
    for setting in fields(RecipeSettings):
        value: Any = file
        for part in key_of(setting.name).split("."):
            value = getattr(value, part)
        if value is not None:
            given[setting.name] = value
    return RecipeSettings(**given)


def with_settings(
    settings: RecipeSettings, other: Mapping[str, Any], *, complete: bool
) -> dict[str, Any]:
    """A file's plain data: ``other`` (its nested keys) with the settings put in.

    A setting that ``other`` lacks is written where it is not the default of an absent key, or
    ``complete`` asks for every published key.
    """
    data = deepcopy(dict(other))
    for setting in fields(RecipeSettings):
        *sections, key = key_of(setting.name).split(".")
        value = getattr(settings, setting.name)
        place = data
        for section in sections:
            inner = place.get(section)
            place = inner if isinstance(inner, dict) else {}
        written = key in place and place[key] is not None
        if written or value != setting.default or (complete and key not in _UNPUBLISHED):
            place = data
            for section in sections:
                if not isinstance(place.get(section), dict):
                    place[section] = {}
                place = place[section]
            place[key] = value
    return data


def check_numbers(file: RecipeFile, source: str) -> None:
    """Refuse sizes that are not positive, switches that do not exist, a share outside 0 to 1.

    Raises:
        InputError: names the key.
    """
    for section in ("data_config", "scheduler_config", "parallel_config"):
        part = getattr(file, section)
        for item in fields(part):
            value, least = getattr(part, item.name), 0 if item.name in _MAY_BE_ZERO else 1
            if isinstance(value, int) and value < least:
                key = f"{section}.{item.name}"
                raise InputError(key, value, f"a whole number from {least}", source)
    share = file.scheduler_config.mem_fraction_static
    if share is not None and not 0.0 < share <= 1.0:
        key = "scheduler_config.mem_fraction_static"
        raise InputError(key, share, "a share above 0, at most 1", source)
    switches = (
        ("model_config.next_n", file.model_config.next_n),
        (f"{_CUSTOM}.enable_multi_streams", file.model_config.custom_params.enable_multi_streams),
    )
    for key, value in switches:
        if value not in (None, 0, 1, 2):
            raise InputError(key, value, "0, 1 or 2", source)
    chunk = file.model_config.custom_params.moe_chunk_max_len
    if chunk is not None and chunk < 1:
        raise InputError(f"{_CUSTOM}.moe_chunk_max_len", chunk, "a whole number from 1", source)
