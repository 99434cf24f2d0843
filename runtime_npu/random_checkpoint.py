"""Making a random checkpoint: seeded, in the layout of real ones, its numbers far from flat."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

from hardware_models.errors import InputError
from runtime_npu.checkpoint import CONFIG, INDEX
from runtime_npu.quantise import quantise_rows
from runtime_npu.weights import (
    LAYERS_ONLY,
    ROUTER_TENSORS,
    SCALE,
    Contents,
    is_quantised,
    tensor_names,
)
from twin.model_spec import ModelSpec
from twin.results import write_json

WEIGHT_STD = 0.2
NORM_STD = 0.3
BIAS_STD = 0.1
"""Wide enough that a wrong scale, norm or bias shows in the logits: with the usual 0.02 and
zero biases they are nearly flat, whatever the model computes."""
MOST_BYTES = 8 * 2**30

Dtype = Literal["float32", "bfloat16"]


def make_checkpoint(
    folder: Path,
    spec: ModelSpec,
    seed: int,
    dtype: Dtype = "float32",
    contents: Contents = LAYERS_ONLY,
    *,
    overwrite: bool = False,
) -> None:
    """Write config.json, one shard per layer and one for the rest, and the index.

    Weights are normal with std 0.2, norm weights around 1, correction biases around 0 and
    fp32, as the router is.  The same arguments give the same bytes.  ``contents``
    may add the MTP layer (the other tensors stay the same) and have the FFNs quantised.
    ``overwrite`` lets files of an earlier run be replaced.

    Raises:
        InputError: the folder is not empty, or the model has more than 8 GiB of weights.
    """
    names = tensor_names(spec, Contents(mtp=contents.mtp)).required
    elements = sum(torch.Size(shape).numel() for shape in names.values())
    stored = getattr(torch, dtype)
    if elements * stored.itemsize > MOST_BYTES:
        raise InputError(
            "model", spec.name, f"a model of at most {MOST_BYTES >> 30} GiB to make weights for"
        )
    if not overwrite and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("make_checkpoint", str(folder), "a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)

    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _random(name, shape, generator).to(
            torch.float32 if name.endswith(ROUTER_TENSORS) else stored
        )
        for name, shape in names.items()
    }
    tensors |= _zero_expert_rows(spec, stored)
    if contents.int8:
        tensors |= _quantised(tensors)
    shards: dict[str, dict[str, torch.Tensor]] = {}
    count = spec.num_layers + 1
    for name, tensor in tensors.items():
        number = int(name.split(".")[2]) + 2 if name.startswith("model.layers.") else 1
        file = f"model-{number:05d}-of-{count:05d}.safetensors"
        shards.setdefault(file, {})[name] = tensor
    for file, held in shards.items():
        save_file(held, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: file for file, held in shards.items() for name in held},
    }
    write_json(folder / INDEX, index)
    write_json(folder / CONFIG, config_of(spec, dtype))


def _zero_expert_rows(spec: ModelSpec, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Gate and up weights of the zero experts: never used, but transformers wants them there."""
    shape = (spec.expert_ffn_hidden_size, spec.hidden_size)
    return {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight": torch.zeros(
            shape, dtype=dtype
        )
        for layer in range(spec.num_layers)
        for expert in range(spec.n_routed_experts, spec.router_width)
        for part in ("gate", "up")
    }


def _quantised(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    quantised: dict[str, torch.Tensor] = {}
    for name in filter(is_quantised, tensors):
        quantised[name], scale = quantise_rows(tensors[name])
        quantised[name + SCALE] = scale[:, None]
    return quantised


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator)
    if name.endswith("e_score_correction_bias"):
        return values * BIAS_STD
    return 1.0 + values * NORM_STD if "norm" in name else values * WEIGHT_STD


def config_of(spec: ModelSpec, dtype: Dtype) -> Mapping[str, object]:
    """The config.json of a model, as transformers reads it.

    No token ends a sequence: a random model would stop at random.
    """
    fields = dataclasses.asdict(spec)
    del fields["name"]
    theta = fields.pop("rope_theta")
    return {
        "architectures": ["LongcatFlashForCausalLM"],
        "model_type": "longcat_flash",
        **fields,
        "head_dim": spec.qk_rope_head_dim,
        "num_hidden_layers": 2 * spec.num_layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": dtype,
    }
