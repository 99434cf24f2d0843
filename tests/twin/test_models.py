"""Models: the shipped ones, and configurations of the longcat_flash family."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LongcatFlashConfig

from hardware_models.errors import InputError
from twin.models import load_model, model_from_config, shipped_models
from twin.schema import field_names

FULL = load_model("longcat-flash-560b")


def config(**changes: object) -> dict[str, Any]:
    """A configuration in the words of the published checkpoint, with some fields changed."""
    fields: dict[str, Any] = {
        **{name: value for name, value in asdict(FULL).items() if name != "name"},
        "architectures": ["LongcatFlashForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_method": "MLA",
        "auto_map": {"AutoConfig": "configuration_longcat_flash.LongcatFlashConfig"},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "model_type": "longcat_flash",
        "norm_topk_prob": False,
        "rope_scaling": None,
        "router_bias": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.56.0",
        "use_cache": True,
        "zero_expert_type": "identity",
    }
    return {k: v for k, v in {**fields, **changes}.items() if v is not ...}


def refused(**changes: object) -> InputError:
    with pytest.raises(InputError) as caught:
        model_from_config(config(**changes), "my/config.json")
    assert caught.value.source == "my/config.json"
    return caught.value


def test_shipped_models_have_the_published_sizes() -> None:
    assert shipped_models() == ["longcat-flash-560b", "mid", "tiny"]
    assert (FULL.hidden_size, FULL.num_layers, FULL.router_width) == (6144, 28, 768)
    assert (FULL.real_topk, FULL.qk_head_dim, FULL.kv_width) == (8.0, 192, 576)
    tiny = load_model("tiny")
    assert tiny.name == "tiny"
    assert tiny.hidden_size * tiny.num_layers < 1000


def test_the_published_configuration_gives_the_shipped_model() -> None:
    loaded = model_from_config(config(), "my/config.json")
    assert replace(loaded, name=FULL.name) == FULL
    assert loaded.name == "my/config.json"


def test_other_layer_counts_expert_counts_and_widths_load() -> None:
    changes = {"num_layers": 14, "n_routed_experts": 256, "hidden_size": 3072, "moe_topk": 8}
    loaded = model_from_config(config(**changes), "my/config.json")
    assert {name: getattr(loaded, name) for name in changes} == changes


def test_a_configuration_that_transformers_saved_loads(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 256,
        "hidden_size": 64,
        "num_layers": 3,
        "num_attention_heads": 4,
        "ffn_hidden_size": 96,
        "q_lora_rank": 32,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "zero_expert_num": 4,
        "moe_topk": 3,
        "expert_ffn_hidden_size": 40,
    }
    rope = {"rope_theta": 5000.0, "rope_type": "default"}
    saved = LongcatFlashConfig(**sizes, head_dim=8, rope_parameters=rope)
    saved.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path / "config.json"))
    assert {name: getattr(loaded, name) for name in sizes} == sizes
    assert loaded.rope_theta == 5000.0
    # The folder names the same checkpoint.
    assert load_model(str(tmp_path)) == loaded


@pytest.mark.parametrize("layers", [28, 56])
def test_both_ways_to_count_layers_are_understood(layers: int) -> None:
    loaded = model_from_config(config(num_hidden_layers=layers), "c")
    assert loaded.num_layers == 28


def test_names_of_other_families_serve_as_aliases() -> None:
    aliased = config(moe_topk=..., num_experts_per_tok=6, intermediate_size=12288)
    assert model_from_config(aliased, "c").moe_topk == 6
    assert refused(intermediate_size=1).field == "intermediate_size"


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("model_type", "deepseek_v3", "longcat_flash"),
        ("model_type", ..., "longcat_flash"),
        ("architectures", ["LlamaForCausalLM"], "LongcatFlashForCausalLM"),
        ("architectures", "LongcatFlashForCausalLM", "a list of"),
        ("attention_bias", True, "false"),
        ("attention_bias", 0, "false"),
        ("hidden_act", "gelu", '"silu"'),
        ("zero_expert_type", "drop", '"identity"'),
        ("norm_topk_prob", True, "false"),
        ("rope_scaling", {"type": "yarn"}, "null"),
        ("tie_word_embeddings", True, "false"),
        ("quantization_config", {"bits": 8}, "null"),
        ("num_hidden_layers", 27, "56 or 28"),
        ("num_key_value_heads", 8, "64"),
        ("head_dim", 128, "64"),
        ("qk_head_dim", 64, "192"),
        ("hidden_size", 0, "more than 0"),
        ("zero_expert_num", -1, "0 or more"),
        ("moe_topk", 769, "768"),
        ("qk_rope_head_dim", 63, "even"),
        ("hidden_size", "6144", "a whole number"),
        ("hidden_size", 6144.0, "a whole number"),
        ("rms_norm_eps", float("nan"), "a finite number"),
        ("mla_scale_q_lora", 1, "true or false"),
        ("n_routed_experts", ..., "a whole number"),
        ("rope_parameters", {"rope_theta": 1e7, "factor": 2}, "rope_theta and rope_type"),
        ("rope_parameters", {"rope_type": "default"}, "rope_theta"),
    ],
)
def test_what_is_not_implemented_is_named(field: str, value: object, allowed: str) -> None:
    error = refused(**{field: value})
    assert error.field == field
    assert allowed in error.allowed


def test_rope_of_another_type_or_with_two_thetas_is_refused() -> None:
    yarn = refused(rope_parameters={"rope_theta": 1e7, "rope_type": "yarn"})
    assert (yarn.field, yarn.value) == ("rope_parameters.rope_type", "yarn")
    two = refused(rope_parameters={"rope_theta": 1e6, "rope_type": "default"})
    assert (two.field, two.value) == ("rope_theta", 1e7)


def test_unknown_fields_are_refused_by_name() -> None:
    error = refused(ngram_vocab_size_ratio=78, emb_split_num=4)
    assert error.field == "emb_split_num, ngram_vocab_size_ratio"
    assert "hidden_size" in error.allowed


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{\n"a": }', "line 2"),
        ('{"model_type": "longcat_flash", "model_type": "x"}', "file"),
        ("[1]", "file"),
        ("[" * 100_000, "file"),
        ("9" * 5000, "file"),
    ],
)
def test_a_broken_config_names_the_file(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert (caught.value.source, caught.value.field) == (str(path), field)


@pytest.mark.parametrize("name", ["longcat", "", "no/such/config.json", "a\0b", "x" * 5000, "."])
def test_an_unknown_model_lists_the_shipped_ones(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(name)
    assert caught.value.field == "model"
    assert "longcat-flash-560b, mid, tiny" in caught.value.allowed


def test_a_binary_file_is_no_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_model(str(path))


STRANGE: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 0, 1, True, "x", "", [], {}, [1], 0.5, 2**70, "identity"]
)


@given(st.dictionaries(st.sampled_from(sorted(config())) | st.text(max_size=5), STRANGE))
def test_no_configuration_gives_anything_but_a_model_or_an_input_error(
    changes: dict[str, Any],
) -> None:
    text = json.dumps({**config(), **changes})
    try:
        spec = model_from_config(json.loads(text), "c")
    except InputError:
        return
    assert set(asdict(spec)) == set(field_names(type(spec)))
    assert spec.hidden_size > 0
    assert spec.moe_topk <= spec.router_width
