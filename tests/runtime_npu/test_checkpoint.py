"""Checkpoints: made, read, and refused before any compute when something is wrong."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from oracle import SPECS, TOLERANCE, error, oracle_run, our_model, our_run, prompts_of, spec
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hardware_models.errors import InputError
from runtime_npu.checkpoint import INDEX, Checkpoint, declared_dtype
from runtime_npu.random_checkpoint import MOST_BYTES, make_checkpoint
from twin.models import load_model

SPEC = SPECS["plain"]
O_PROJ = "model.layers.1.self_attn.0.o_proj.weight"
ROUTER = "model.layers.0.mlp.router.classifier.weight"
BIAS = "model.layers.0.mlp.router.e_score_correction_bias"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path, checkpoint_of: Callable[[str], Path]) -> Path:
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_of("plain"), copy)
    return copy


def change(folder: Path, edit: Callable[[Tensors], None], *, keep_index: bool = False) -> None:
    """Rewrite all tensors into one shard, with an index that fits (or the old one)."""
    tensors: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    edit(tensors)
    index = json.loads((folder / INDEX).read_text())
    if keep_index:
        for file in set(index["weight_map"].values()):
            held = {n: t for n, t in tensors.items() if index["weight_map"].get(n) == file}
            save_file(held, folder / file)
        return
    for file in folder.glob("*.safetensors"):
        file.unlink()
    save_file(tensors, folder / "all.safetensors")
    index["weight_map"] = dict.fromkeys(tensors, "all.safetensors")
    (folder / INDEX).write_text(json.dumps(index))


def drop_o_proj(tensors: Tensors) -> None:
    del tensors[O_PROJ]


def refused(folder: Path, dtype: str | None = "float32") -> InputError:
    with pytest.raises(InputError) as caught:
        Checkpoint(folder, SPEC, dtype)
    return caught.value


def test_the_same_seed_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "again", SPEC, seed=1)
    make_checkpoint(tmp_path / "other", SPEC, seed=2)
    files = sorted(path.name for path in folder.iterdir())
    assert len(files) == 2 + 1 + SPEC.num_layers
    assert files == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in files:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    shard = "model-00002-of-00003.safetensors"
    assert (folder / shard).read_bytes() != (tmp_path / "other" / shard).read_bytes()


def test_random_numbers_are_far_from_flat(folder: Path) -> None:
    with Checkpoint(folder, SPEC, "float32") as checkpoint:
        weight = checkpoint.read("model.layers.0.mlps.0.gate_proj.weight", torch.float32).values
        norm = checkpoint.read("model.layers.0.input_layernorm.0.weight", torch.float32).values
        bias = checkpoint.read(BIAS, torch.float32).values
    assert 0.19 < float(weight.std()) < 0.21
    assert abs(float(norm.mean()) - 1) < 0.2
    assert float(norm.std()) > 0.1
    assert float(bias.abs().min()) > 0


def test_config_gives_the_spec_back(folder: Path) -> None:
    path = folder / "config.json"
    assert replace(load_model(str(path)), name=SPEC.name) == SPEC
    assert declared_dtype(json.loads(path.read_text()), "config") == "float32"


def test_missing_tensor(folder: Path) -> None:
    change(folder, drop_o_proj)
    assert refused(folder).field == O_PROJ
    assert "missing" in str(refused(folder))


def test_extra_tensor(folder: Path) -> None:
    change(folder, lambda t: t.update({"model.layers.0.surprise.weight": torch.zeros(1)}))
    assert refused(folder).field == "model.layers.0.surprise.weight"


def test_extra_layer(folder: Path) -> None:
    name = "model.layers.2.self_attn.0.o_proj.weight"
    change(folder, lambda t: t.update({name: t[O_PROJ].clone()}))
    assert refused(folder).field == name


@pytest.mark.parametrize("name", [O_PROJ, ROUTER, BIAS, "lm_head.weight"])
def test_wrong_shape(folder: Path, name: str) -> None:
    change(folder, lambda t: t.update({name: torch.cat([t[name], t[name]])}))
    assert refused(folder).field == f"{name} shape"


def test_transposed_tensor(folder: Path) -> None:
    change(folder, lambda t: t.update({O_PROJ: t[O_PROJ].T.contiguous()}))
    assert refused(folder).field == f"{O_PROJ} shape"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.float64])
def test_wrong_type(folder: Path, dtype: torch.dtype) -> None:
    change(folder, lambda t: t.update({O_PROJ: t[O_PROJ].to(dtype)}))
    assert refused(folder).field == f"{O_PROJ} dtype"
    assert refused(folder, None).field == f"{O_PROJ} dtype"


def test_config_and_tensors_of_different_types(folder: Path) -> None:
    assert "F32" in str(refused(folder, "bfloat16"))


def test_a_type_that_nothing_reads(folder: Path) -> None:
    change(folder, lambda t: t.update({n: x.half() for n, x in t.items()}))
    assert refused(folder, None).field.endswith("dtype")
    with pytest.raises(InputError, match="float16"):
        declared_dtype({"torch_dtype": "float16"}, "config.json")


def test_router_may_be_fp32_in_a_bf16_checkpoint(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "bf16", SPEC, 0, "bfloat16")
    with Checkpoint(tmp_path / "bf16", SPEC, "bfloat16") as checkpoint:
        assert checkpoint.read(ROUTER, torch.bfloat16).dtype == torch.float32
        assert checkpoint.read(O_PROJ, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
def test_truncated_file(folder: Path, kept: float) -> None:
    file = folder / "model-00002-of-00003.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    assert refused(folder).source == str(file)


def test_the_tensor_that_a_file_ends_in_is_named(folder: Path) -> None:
    file = folder / "model-00002-of-00003.safetensors"
    with safe_open(file, framework="pt") as opened:
        names = set(opened.keys())
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    last = refused(folder)
    assert last.field in names
    assert "truncated" in str(last)
    file.write_bytes(data[: 8 + int.from_bytes(data[:8], "little")])
    first = refused(folder)
    assert first.field in names - {last.field}
    assert first.value == "0 bytes"


def test_missing_file(folder: Path) -> None:
    file = folder / "model-00003-of-00003.safetensors"
    file.unlink()
    assert refused(folder).value == file.name


def test_index_and_files_disagree(folder: Path) -> None:
    change(folder, drop_o_proj, keep_index=True)
    assert refused(folder).field == O_PROJ


def test_index_without_a_tensor_of_its_files(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][O_PROJ]
    (folder / INDEX).write_text(json.dumps(index))
    assert refused(folder).field == O_PROJ


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'])
def test_broken_index(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    assert refused(folder).source == str(folder / INDEX)


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_index_cannot_point_outside(folder: Path, file: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][O_PROJ] = file
    (folder / INDEX).write_text(json.dumps(index))
    assert refused(folder).field == f"weight_map.{O_PROJ}"


def test_no_weights_at_all(tmp_path: Path) -> None:
    assert refused(tmp_path).field == "checkpoint"


def test_mtp_tensors_and_rows_of_zero_experts_are_ignored(folder: Path) -> None:
    prompts = prompts_of(SPEC, (4,))
    expected = our_run(our_model(folder, SPEC), prompts, 4)[2]
    row = "model.layers.0.mlp.experts.{}.{}_proj.weight"

    def edit(t: Tensors) -> None:
        t["model.mtp.norm.weight"] = torch.ones(3, dtype=torch.float16)
        assert SPEC.n_routed_experts == 6
        for part in ("gate", "up"):
            # transformers writes them; real checkpoints do not have them.
            t[row.format(6, part)] = torch.full_like(t[row.format(0, part)], torch.nan)
            del t[row.format(8, part)]

    change(folder, edit)
    assert torch.equal(our_run(our_model(folder, SPEC), prompts, 4)[2], expected)


@pytest.mark.parametrize("name", ["9.gate", "6.down"])
def test_other_rows_beyond_the_routed_experts_are_refused(folder: Path, name: str) -> None:
    full = f"model.layers.0.mlp.experts.{name}_proj.weight"
    change(folder, lambda t: t.update({full: torch.zeros(2, 2)}))
    assert refused(folder).field == full


@pytest.mark.parametrize("shard_size", ["50GB", "40KB"])
def test_a_model_saved_by_transformers(tmp_path: Path, shard_size: str) -> None:
    config = transformers.LongcatFlashConfig.from_dict(
        json.loads(_config_text(tmp_path)), initializer_range=0.2
    )
    torch.manual_seed(3)
    theirs = transformers.LongcatFlashForCausalLM(config).eval()
    theirs.set_attn_implementation("eager")
    saved = tmp_path / "saved"
    theirs.save_pretrained(saved, max_shard_size=shard_size)
    assert (saved / INDEX).is_file() == (shard_size == "40KB")
    loaded = load_model(str(saved))
    prompts = prompts_of(loaded, (6,))
    ours = our_run(our_model(saved, loaded), prompts, 6)
    expected = oracle_run(theirs, prompts[0], 6)
    assert ours[0][0] == expected[0]
    assert error(ours[2][0], expected[2]) < TOLERANCE


def _config_text(tmp_path: Path) -> str:
    make_checkpoint(tmp_path / "for_config", SPEC, 0)
    return (tmp_path / "for_config" / "config.json").read_text()


def test_makes_no_checkpoint_over_another_or_of_a_huge_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        make_checkpoint(folder, SPEC, 0)
    assert caught.value.field == "make_checkpoint"
    huge = spec("huge", vocab_size=MOST_BYTES // SPEC.hidden_size)
    with pytest.raises(InputError) as caught:
        make_checkpoint(tmp_path / "huge", huge, 0)
    assert caught.value.field == "model"
    assert not (tmp_path / "huge").exists()
