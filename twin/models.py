"""Loading a ModelSpec: a shipped one by name, or a checkpoint's ``config.json``.

Config field names are those of the longcat_flash family, as its checkpoints and
transformers write them.  Every field is used, checked to have the one value that is
implemented, or known not to matter for compute; any other is refused by name, because an
unknown field may change the architecture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from hardware_models.errors import InputError
from hardware_models.yaml_io import parse_yaml, read_text
from twin.model_spec import ModelSpec
from twin.schema import field_names, load_dataclass

MODEL_TYPE = "longcat_flash"
ARCHITECTURES = ("LongcatFlashForCausalLM", "LongcatFlashModel", "LongcatCausalLM")

_ALIASES = {
    "intermediate_size": "ffn_hidden_size",
    "moe_intermediate_size": "expert_ffn_hidden_size",
    "num_experts_per_tok": "moe_topk",
    "num_local_experts": "n_routed_experts",
}

_ONLY: dict[str, tuple[object, ...]] = {
    "model_type": (MODEL_TYPE,),
    "attention_bias": (False,),
    "attention_method": ("MLA",),
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "nextn_use_scmoe": (False,),
    "norm_topk_prob": (False,),
    "num_nextn_predict_layers": (None, 0, 1),
    "quantization_config": (None,),
    "rope_scaling": (None,),
    "router_bias": (False,),
    "router_dtype": ("float32",),
    "tie_word_embeddings": (False,),
    "topk_method": (None, "noaux_tc"),
    "zero_expert_type": ("identity",),
}
"""Fields with the only values that are implemented."""

_IRRELEVANT = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",  # checked apart: a list
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "ep_size",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "params_dtype",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Fields that do not change what one step computes."""

_DERIVED = (
    "head_dim",
    "num_hidden_layers",
    "num_key_value_heads",
    "qk_head_dim",
    "rope_parameters",
)

_MAY_BE_ZERO = ("zero_expert_num",)


def shipped_models() -> list[str]:
    """Names of the models that the package ships."""
    folder = resources.files("scenarios") / "models"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_model(name_or_path: str) -> ModelSpec:
    """A shipped model by name, or a checkpoint by the path of its config.json or its folder.

    Raises:
        InputError: neither; or the file is unreadable or not of the longcat_flash family.
    """
    if name_or_path in shipped_models():
        source = f"models/{name_or_path}.yaml"
        text = (resources.files("scenarios") / "models" / f"{name_or_path}.yaml").read_text("utf-8")
        spec = load_dataclass(ModelSpec, parse_yaml(text, source), source)
        check_model(spec, source)
        return spec
    path = Path(name_or_path)
    try:
        path = path / "config.json" if path.is_dir() else path
        found = path.is_file()
    except (OSError, ValueError):  # too long, or a null byte: no path at all
        found = False
    if not found or path.suffix != ".json":
        raise InputError(
            "model",
            name_or_path,
            f"a shipped model ({', '.join(shipped_models())}), or the path of a checkpoint's "
            "config.json or of its folder",
        )
    return model_from_config(_read_json(path), str(path))


def model_from_config(config: Mapping[str, object], source: str) -> ModelSpec:
    """The ModelSpec of a checkpoint's configuration; ``source`` becomes its name.

    Args:
        config: the parsed ``config.json``.
        source: where it came from, named by errors.

    Raises:
        InputError: another architecture, an unknown field, a value that is not implemented,
            a missing field or impossible sizes.
    """
    _check_family(config, source)
    used = set(field_names(ModelSpec)) - {"name"}
    known = used | set(_ALIASES) | set(_ONLY) | _IRRELEVANT | set(_DERIVED)
    unknown = sorted(map(str, set(config) - known))
    if unknown:
        raise InputError(
            ", ".join(unknown), config[unknown[0]], f"only fields known: {_listed(known)}", source
        )
    for field, allowed in _ONLY.items():
        if field in config and not _is_one_of(config[field], allowed):
            raise InputError(field, config[field], _or(allowed), source)
    values = {field: value for field, value in config.items() if field in used}
    for alias, field in _ALIASES.items():
        if alias in config and values.setdefault(field, config[alias]) != config[alias]:
            raise InputError(alias, config[alias], f"{values[field]}, as {field}", source)
    theta = _rope_theta(config, source)
    if theta is not None:
        values["rope_theta"] = theta
    spec = load_dataclass(ModelSpec, {**values, "name": source}, source)
    check_model(spec, source)
    _check_derived(config, spec, source)
    return spec


def check_model(spec: ModelSpec, source: str | None = None) -> None:
    """Check that the sizes of a model fit each other.

    Raises:
        InputError: a size that is not positive, more experts chosen than there are, an odd
            rope width.
    """
    for field in field_names(ModelSpec):
        value = getattr(spec, field)
        if isinstance(value, bool | str):
            continue
        least = "0 or more" if field in _MAY_BE_ZERO else "more than 0"
        if value < 0 or (value == 0 and field not in _MAY_BE_ZERO):
            raise InputError(field, value, least, source)
    if spec.moe_topk > spec.router_width:
        raise InputError(
            "moe_topk",
            spec.moe_topk,
            f"at most the router width {spec.router_width} (n_routed_experts + zero_expert_num)",
            source,
        )
    if spec.qk_rope_head_dim % 2:
        raise InputError(
            "qk_rope_head_dim", spec.qk_rope_head_dim, "an even number (rope turns pairs)", source
        )


def _check_family(config: Mapping[str, object], source: str) -> None:
    if config.get("model_type") != MODEL_TYPE:
        raise InputError("model_type", config.get("model_type"), MODEL_TYPE, source)
    architectures = config.get("architectures")
    if architectures is None:
        return
    if not isinstance(architectures, list) or not set(map(str, architectures)) <= set(
        ARCHITECTURES
    ):
        raise InputError(
            "architectures", architectures, f"a list of {', '.join(ARCHITECTURES)}", source
        )


def _rope_theta(config: Mapping[str, object], source: str) -> object:
    """Theta out of transformers 5's ``rope_parameters``; None where the config has none."""
    rope = config.get("rope_parameters")
    if rope is None:
        return None
    fields = "a mapping with rope_theta and rope_type: default"
    if not isinstance(rope, dict) or not set(rope) <= {"rope_theta", "rope_type"}:
        raise InputError("rope_parameters", rope, fields, source)
    if rope.get("rope_type", "default") != "default":
        raise InputError("rope_parameters.rope_type", rope["rope_type"], "default", source)
    theta = rope.get("rope_theta")
    if theta is None:
        raise InputError("rope_parameters", rope, fields, source)
    if config.get("rope_theta", theta) != theta:
        raise InputError(
            "rope_theta", config["rope_theta"], f"{theta}, as in rope_parameters", source
        )
    return theta


def _check_derived(config: Mapping[str, object], spec: ModelSpec, source: str) -> None:
    layers = spec.num_layers
    allowed: dict[str, tuple[object, ...]] = {
        # transformers counts attentions, two a layer; other writers count layers.
        "num_hidden_layers": (2 * layers, layers),
        "num_key_value_heads": (spec.num_attention_heads, None),
        "head_dim": (spec.qk_rope_head_dim, None),
        "qk_head_dim": (spec.qk_head_dim, None),
    }
    for field, values in allowed.items():
        if field in config and not _is_one_of(config[field], values):
            raise InputError(field, config[field], f"{_or(values)} (from the other fields)", source)


def _is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    # 0 == False in Python, but not in a configuration.
    return any(value == item and type(value) is type(item) for item in allowed)


def _or(values: tuple[object, ...]) -> str:
    return " or ".join(json.dumps(value) for value in values)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _read_json(path: Path) -> Mapping[str, object]:
    source = str(path)
    text = read_text(path, "model")
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}", error.msg, "valid JSON", source) from None
    except (ValueError, RecursionError) as error:
        raise InputError("file", str(error), "valid JSON with every key once", source) from None
    if not isinstance(data, dict):
        raise InputError("file", type(data).__name__, "a JSON object", source)
    return data


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(n for n in names if names.count(n) > 1)!r}")
    return data
