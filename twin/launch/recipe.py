"""The LongCat recipe's YAML to a schedule, and a schedule to the nearest such file.

Rules between keys are the recipe's own: eager mode has one stream, prefetches need several,
SuperKernel needs ge_graph, the static kernel needs npugraph_ex, the batch is a multiple of the
attention groups; with AFD half of the dies hold the experts.
"""

from __future__ import annotations

from hardware_models.errors import InputError
from hardware_models.yaml_io import Block, dump_yaml, parse_yaml
from twin.deployment import Afd, Deployment, Role, RoleDeployment
from twin.launch.beside import Beside
from twin.launch.imported import Imported, checked
from twin.launch.recipe_keys import (
    RecipeFile,
    RecipeSettings,
    check_numbers,
    key_of,
    read_recipe,
    settings_of,
)
from twin.launch.recipe_plan import recipe_prefetches, recipe_scopes, recipe_stages
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.schedule import FORMAT, Schedule
from twin.workload import Workload

SIZES = {
    "attention_tp": "attn_tp_size",
    "o_proj_tp": "o_proj_tp_size",
    "dense_tp": "dense_tp_size",
    "kvp": "kvp_size",
    "lm_head_tp": "lmhead_tp_size",
    "embed_tp": "embed_tp_size",
}
"""Parallel sizes of the role that holds attention, and their settings."""

_KEYS = (
    *((f".{size}", key_of(setting)) for size, setting in SIZES.items()),
    (".ep", key_of("world_size")),
    (".dies", key_of("world_size")),
    ("workload.global_batch", key_of("batch_size")),
    ("workload.next_n", key_of("next_n")),
    ("workload.kv_tokens", "kv_tokens"),
    ("workload.acceptance", "acceptance"),
)


def import_recipe(text: str, source: str, beside: Beside) -> Imported:
    """The decode schedule that a recipe's YAML launches.

    Raises:
        InputError: broken YAML, an unknown or missing key, a wrong type or value, keys that
            exclude each other; names the file and the key.
    """
    file = read_recipe(parse_yaml(text, source), source)
    check_numbers(file, source)
    settings = settings_of(file)
    _check_together(file, settings, source)
    schedule = schedule_of(settings, beside, load_model(beside.model))
    assumed = {**beside.as_data(), "acceptance": schedule.workload.acceptance}
    del assumed["expert_load"]
    return checked(
        Imported(schedule=schedule, assumed=assumed, not_modelled=_not_modelled(file)),
        _KEYS,
        source,
    )


def schedule_of(settings: RecipeSettings, beside: Beside, model: ModelSpec) -> Schedule:
    """The schedule that settings launch; its rules are not checked."""
    is_afd, streams = settings.enable_afd, settings.enable_multi_streams
    deployment = Deployment(
        hardware=beside.hardware,
        quantisation=beside.quantisation,
        graph_mode=settings.exe_mode,
        roles=_roles(settings),
        afd=Afd(transport="sdma_pairs", micro_batches=1) if is_afd else None,
    )
    prefetch = recipe_prefetches(model, deployment) if settings.enable_prefetch else ()
    scopes = recipe_scopes(streams, is_afd=is_afd) if settings.enable_superkernel else ()
    return Schedule(
        format=FORMAT,
        model=beside.model,
        workload=Workload(
            phase="decode",
            global_batch=settings.batch_size,
            kv_tokens=beside.kv_tokens,
            next_n=settings.next_n,
            acceptance=beside.acceptance_for(settings.next_n),
            expert_load="balanced" if settings.force_eplb else "uniform",
        ),
        deployment=deployment,
        stages=recipe_stages(streams, is_afd=is_afd),
        prefetch=prefetch,
        super_kernel=scopes,
    )


def _roles(settings: RecipeSettings) -> dict[Role, RoleDeployment]:
    sizes = {name: getattr(settings, setting) for name, setting in SIZES.items()}
    if not settings.enable_afd:
        dies = settings.world_size
        return {"colocated": RoleDeployment(dies=dies, ep=dies, **sizes)}
    half = settings.world_size // 2
    return {
        "attention": RoleDeployment(dies=half, **sizes),
        "ffn": RoleDeployment(dies=half, ep=half),
    }


def recipe_yaml(data: dict[str, object]) -> str:
    """A recipe file's plain data as YAML, a key a line."""

    def by_line(value: object) -> object:
        if not isinstance(value, dict):
            return value
        return Block({str(key): by_line(item) for key, item in value.items()})

    return dump_yaml(by_line(data))


def _check_together(file: RecipeFile, settings: RecipeSettings, source: str) -> None:
    """Rules between the keys of a file."""
    mode, streams = settings.exe_mode, settings.enable_multi_streams
    groups = settings.world_size // (2 if settings.enable_afd else 1)
    groups //= settings.attn_tp_size * settings.kvp_size
    static = file.model_config.enable_static_kernel
    rules: tuple[tuple[bool, str, object, str], ...] = (
        (mode != "eager" or streams == 0, "enable_multi_streams", streams, "0 in eager mode"),
        (
            streams > 0 or not settings.enable_prefetch,
            "enable_prefetch",
            settings.enable_prefetch,
            "false where enable_multi_streams is 0: prefetches need a stream",
        ),
        (
            mode == "ge_graph" or not settings.enable_superkernel,
            "enable_superkernel",
            settings.enable_superkernel,
            f"false in {mode}: only ge_graph fuses launches",
        ),
        (
            not settings.enable_afd or streams > 0,
            "enable_multi_streams",
            streams,
            "1 or 2 with enable_afd: transfers have a stream of their own",
        ),
        (
            not settings.enable_afd or settings.world_size % 2 == 0,
            "world_size",
            settings.world_size,
            "an even number with enable_afd: half of the dies hold the experts",
        ),
        (
            settings.moe_tp_size == 1,
            "moe_tp_size",
            settings.moe_tp_size,
            "1: a schedule's experts are whole",
        ),
        (
            groups > 0 and settings.batch_size % groups == 0,
            "batch_size",
            settings.batch_size,
            f"a multiple of the {groups} attention groups",
        ),
    )
    if static and mode != "npugraph_ex":
        key = "model_config.enable_static_kernel"
        raise InputError(key, static, f"false in {mode}: only npugraph_ex has it", source)
    for holds, setting, value, allowed in rules:
        if not holds:
            raise InputError(key_of(setting), value, allowed, source)


def _not_modelled(file: RecipeFile) -> tuple[str, ...]:
    custom = file.model_config.custom_params
    found = []
    if custom.enable_mla_prolog is False:
        found.append("enable_mla_prolog: false; the fused prolog is simulated")
    if file.model_config.enable_static_kernel:
        found.append("enable_static_kernel: true; launches are simulated without it")
    if (file.parallel_config.cp_size or 1) > 1:
        found.append(f"cp_size: {file.parallel_config.cp_size}; prefill's, decode has no field")
    return tuple(found)


def unfilled(schedule: Schedule) -> dict[str, dict[str, object]]:
    """Keys of a whole file that no schedule decides, with what is written where nobody says."""
    tokens = schedule.workload.kv_tokens
    return {
        "model_config": {
            "model_name": "longcat_flash",
            "model_path": schedule.model,
            "with_ckpt": True,
            "enable_static_kernel": False,
            "enable_profiler": False,
            "enable_cache_compile": schedule.deployment.graph_mode != "eager",
            "custom_params": {"enable_mla_prolog": True, "moe_chunk_max_len": 1024},
        },
        "data_config": {"dataset": "default", "input_truncated_len": tokens},
        "scheduler_config": {
            "block_size": 128,
            "max_new_tokens": 512,
            "max_prefill_tokens": tokens,
            "mem_fraction_static": 0.85,
            "num_reserved_decode_tokens": 512,
        },
        "parallel_config": {"cp_size": 1},
    }
