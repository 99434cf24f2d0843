"""What a checkpoint must hold besides the layers: the MTP layer, and FFNs as int8 with scales."""

from pathlib import Path

import pytest
import torch
from oracle import SPECS
from safetensors.torch import load_file, save_file

from hardware_models.errors import InputError
from runtime_npu.checkpoint import INDEX, Checkpoint
from runtime_npu.parallel.shard import shard_of
from runtime_npu.parallel.world import alone
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.weights import Contents, is_quantised, parameters, tensor_names

SPEC = SPECS["no_zero_experts"]
MTP = Contents(mtp=True)
INT8 = Contents(mtp=True, int8=True)
EH_PROJ = "model.mtp.layers.0.eh_proj.weight"
MTP_DOWN = "model.mtp.layers.0.transformer_layer.mlp.down_proj.weight"
EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"


def tensors_of(contents: Contents) -> dict[str, torch.Tensor]:
    """Zeros in the shape and type of every tensor."""

    def zeros(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name.endswith("_scale"):
            return torch.zeros(shape)
        return torch.zeros(
            shape, dtype=torch.int8 if contents.int8 and is_quantised(name) else None
        )

    return {name: zeros(name, s) for name, s in tensor_names(SPEC, contents).required.items()}


def refused(folder: Path, tensors: dict[str, torch.Tensor], contents: Contents) -> InputError:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError) as caught:
        Checkpoint(folder, SPEC, "float32", contents)
    return caught.value


def test_the_mtp_layer_is_added_and_changes_no_other_tensor(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "without", SPEC, 5)
    make_checkpoint(tmp_path / "with", SPEC, 5, contents=Contents(mtp=True))
    for file in (tmp_path / "without").glob("*.safetensors"):
        held, more = load_file(file), load_file(tmp_path / "with" / file.name)
        assert {name for name in more if not name.startswith("model.mtp.")} == set(held)
        assert all(torch.equal(more[name], tensor) for name, tensor in held.items())
    index = (tmp_path / "with" / INDEX).read_text()
    assert EH_PROJ in index
    with Checkpoint(tmp_path / "with", SPEC, "float32", MTP) as checkpoint:
        norm = checkpoint.read("model.mtp.layers.0.enorm.m.weight", torch.float32).values
    assert abs(float(norm.mean()) - 1) < 0.2
    with Checkpoint(tmp_path / "with", SPEC, "float32"):
        pass
    with pytest.raises(InputError, match=r"model\.mtp\.embed_tokens\.weight"):
        Checkpoint(tmp_path / "without", SPEC, "float32", MTP)


def test_a_mtp_tensor_that_is_missing_extra_or_of_another_shape(tmp_path: Path) -> None:
    whole = tensors_of(MTP)
    missing = {name: tensor for name, tensor in whole.items() if name != EH_PROJ}
    assert refused(tmp_path, missing, MTP).field == EH_PROJ
    extra = whole | {"model.mtp.layers.1.eh_proj.weight": torch.zeros(1)}
    assert refused(tmp_path, extra, MTP).field == "model.mtp.layers.1.eh_proj.weight"
    turned = whole | {EH_PROJ: whole[EH_PROJ].T.contiguous()}
    assert refused(tmp_path, turned, MTP).field == f"{EH_PROJ} shape"


@pytest.mark.parametrize("name", [MTP_DOWN, EXPERT, "model.layers.0.mlps.1.gate_proj.weight"])
def test_int8_tensors_and_their_scales(name: str, tmp_path: Path) -> None:
    whole = tensors_of(INT8)
    assert whole[name].dtype == torch.int8
    assert whole[name + "_scale"].shape == (len(whole[name]), 1)
    unscaled = {n: tensor for n, tensor in whole.items() if n != name + "_scale"}
    error = refused(tmp_path, unscaled, INT8)
    assert error.field == name + "_scale"
    assert "runtime_npu.convert" in str(error)
    assert refused(tmp_path, whole | {name: whole[name].float()}, INT8).field == f"{name} dtype"
    half = whole | {name + "_scale": whole[name + "_scale"].bfloat16()}
    assert refused(tmp_path, half, INT8).field == f"{name}_scale dtype"
    flat = whole | {name + "_scale": whole[name + "_scale"][:, 0].contiguous()}
    assert refused(tmp_path, flat, INT8).field == f"{name}_scale shape"


def test_a_quantised_checkpoint_is_no_plain_one_and_the_other_way_round(tmp_path: Path) -> None:
    assert "scales belong to w8a8" in str(refused(tmp_path, tensors_of(INT8), MTP))
    assert "runtime_npu.convert" in str(refused(tmp_path, tensors_of(MTP), INT8))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.router.classifier.weight",
        "model.layers.0.mlp.router.e_score_correction_bias",
        "model.layers.0.self_attn.0.o_proj.weight",
        "model.mtp.layers.0.eh_proj.weight",
        "model.layers.0.mlps.0.gate_proj.weight_scale",
        "lm_head.weight",
    ],
)
def test_what_stays_as_it_is(name: str) -> None:
    assert not is_quantised(name)


def test_merged_parameters_hold_gate_over_up_with_their_scales(tmp_path: Path) -> None:
    """Read back by hand: which rows of which file land where."""
    whole = tensors_of(INT8)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in whole.items():
        drawn = torch.randint(-127, 128, tensor.shape, generator=generator)
        whole[name] = drawn.to(tensor.dtype)
    save_file(whole, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path, SPEC, "float32", INT8) as checkpoint:
        whole_model = shard_of(SPEC, alone().deployment, 0)
        state = parameters(
            SPEC, lambda name: checkpoint.read(name, torch.float32), INT8, whole_model
        )
    expert, width = "model.layers.1.mlp.experts.2.", SPEC.expert_ffn_hidden_size
    w13, w13_scale = state["layers.1.moe.w13"], state["layers.1.moe.w13_scale"]
    assert w13.dtype == torch.int8
    assert torch.equal(w13[2, :width], whole[expert + "gate_proj.weight"])
    assert torch.equal(w13[2, width:], whole[expert + "up_proj.weight"])
    assert torch.equal(w13_scale[2, :width], whole[expert + "gate_proj.weight_scale"][:, 0])
    assert torch.equal(w13_scale[2, width:], whole[expert + "up_proj.weight_scale"][:, 0])
    assert torch.equal(state["mtp.dense.down"], whole[MTP_DOWN])
    assert torch.equal(state["mtp.dense.down_scale"], whole[MTP_DOWN + "_scale"][:, 0])
    assert torch.equal(state["mtp.eh_proj"], whole[EH_PROJ])
