"""Conversion to W8A8: values, files, resuming, memory, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import SPECS, spec
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import runtime_npu.conversion as conversion
from hardware_models.errors import InputError
from runtime_npu.checkpoint import INDEX, Checkpoint
from runtime_npu.conversion import STATE, convert
from runtime_npu.convert import ConvertOptions, main
from runtime_npu.quantise import quantise_rows
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.weights import Contents, is_quantised
from twin.cli import run as run_command

SPEC = SPECS["plain"]
INT8 = Contents(mtp=True, int8=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "checkpoint"
    make_checkpoint(folder, SPEC, 4, "bfloat16", contents=Contents(mtp=True))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


@given(st.integers(1, 7), st.integers(1, 40), st.sampled_from((1e-30, 1e-3, 1.0, 1e4)))
def test_rows_are_within_half_a_step(rows: int, width: int, size: float) -> None:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows * width)) * size
    found = quantise_rows(x)
    restored = found.values.double() * found.scale.double()[:, None]
    assert ((restored - x).abs() <= 0.5001 * found.scale.double()[:, None]).all()
    assert (found.values.abs().amax(-1) == 127).all()


def test_a_row_of_zeros_stays_zero_and_a_row_has_its_own_scale() -> None:
    found = quantise_rows(torch.tensor([[0.0, 0.0], [1.0, -127.0], [0.5, 0.254]]))
    assert found.values.tolist() == [[0, 0], [1, -127], [127, 65]]
    assert found.scale.tolist() == pytest.approx([1.0, 1.0, 0.5 / 127])


def test_ffns_become_int8_and_all_else_is_copied(source: Path, tmp_path: Path) -> None:
    result = convert(source, tmp_path / "int8", quiet)
    before, after = tensors(source), tensors(tmp_path / "int8")
    quantised = {name for name in before if is_quantised(name)}
    assert set(after) == set(before) | {name + "_scale" for name in quantised}
    assert "model.mtp.layers.0.transformer_layer.mlp.up_proj.weight" in quantised
    for name, tensor in before.items():
        if name in quantised:
            expected = quantise_rows(tensor)
            assert torch.equal(after[name], expected.values)
            assert torch.equal(after[name + "_scale"], expected.scale[:, None])
        else:
            assert after[name].dtype == tensor.dtype
            assert torch.equal(after[name], tensor)
    assert (tmp_path / "int8" / "tokenizer.json").read_text() == "{}"
    assert {e.name for e in result.errors} == quantised
    routed = [e for e in result.errors if e.square_sum]  # the rows of zero experts are zeros
    assert all(0.001 < e.relative < 0.02 for e in routed)
    name = "model.layers.0.mlps.0.down_proj.weight"
    restored = after[name].float() * after[name + "_scale"]
    measured = (restored - before[name].float()).norm() / before[name].float().norm()
    assert next(e for e in result.errors if e.name == name).relative == pytest.approx(
        float(measured), rel=1e-4
    )


def test_the_new_folder_is_a_whole_checkpoint(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "int8", quiet)
    with Checkpoint(tmp_path / "int8", SPEC, "bfloat16", INT8) as checkpoint:
        assert len(checkpoint.files) == len(list(source.glob("*.safetensors")))
    index = json.loads((tmp_path / "int8" / INDEX).read_text())
    held = tensors(tmp_path / "int8")
    assert set(index["weight_map"]) == set(held)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in held.values())


def test_a_single_file_without_index(source: Path, tmp_path: Path) -> None:
    single = tmp_path / "single"
    single.mkdir()
    save_file(tensors(source), single / "model.safetensors")
    (single / "config.json").write_bytes((source / "config.json").read_bytes())
    convert(single, tmp_path / "int8", quiet)
    assert not (tmp_path / "int8" / INDEX).exists()
    with Checkpoint(tmp_path / "int8", SPEC, "bfloat16", INT8):
        pass


@pytest.mark.parametrize("piece_bytes", [1, 100, 10**9])
def test_the_size_of_pieces_changes_nothing(
    piece_bytes: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "a", quiet)
    monkeypatch.setattr(conversion, "PIECE_BYTES", piece_bytes)
    first = sorted(source.glob("*.safetensors"))[0].name
    small = tmp_path / "small"
    small.mkdir()
    errors = conversion._convert_file(source / first, small / first, lambda moved: None)
    assert (small / first).read_bytes() == (tmp_path / "a" / first).read_bytes()
    assert errors


def test_a_stopped_run_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "whole", quiet)
    into, calls = tmp_path / "int8", []
    real = conversion._convert_file

    def stopped(path: Path, target: Path, progress: Any) -> Any:
        calls.append(path.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(path, target, progress)

    monkeypatch.setattr(conversion, "_convert_file", stopped)
    with pytest.raises(KeyboardInterrupt):
        convert(source, into, quiet)
    assert not (into / INDEX).exists()
    result = convert(source, into, quiet)
    assert result.kept == 1
    assert calls[0] not in calls[1:]
    assert result.errors == convert(source, tmp_path / "whole", quiet).errors
    for file in sorted((tmp_path / "whole").iterdir()):
        assert (into / file.name).read_bytes() == file.read_bytes()


def test_a_file_is_converted_again_when_its_source_or_itself_changed(
    source: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    make_checkpoint(mine, SPEC, 4, "bfloat16", contents=Contents(mtp=True))
    convert(mine, tmp_path / "int8", quiet)
    files = sorted((tmp_path / "int8").glob("*.safetensors"))
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-5])
    changed = load_file(mine / files[0].name)
    changed["lm_head.weight"] += 1
    save_file(changed, mine / files[0].name)
    assert convert(mine, tmp_path / "int8", quiet).kept == len(files) - 2
    assert files[1].read_bytes() == whole
    assert torch.equal(load_file(files[0])["lm_head.weight"], changed["lm_head.weight"])


def test_nothing_half_written_is_left(source: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    make_checkpoint(mine, SPEC, 4, "bfloat16")
    file = mine / "model-00002-of-00003.safetensors"
    held = load_file(file)
    name = "model.layers.0.mlps.1.up_proj.weight"
    held[name][3, 4] = torch.inf
    save_file(held, file)
    with pytest.raises(InputError) as caught:
        convert(mine, tmp_path / "int8", quiet)
    assert caught.value.field == name
    assert not list((tmp_path / "int8").glob("*.partial"))
    assert not (tmp_path / "int8" / file.name).exists()


def test_what_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another folder"):
        convert(source, source, quiet)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(InputError, match="new or an empty folder"):
        convert(source, tmp_path / "full", quiet)
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "nowhere", tmp_path / "int8", quiet)
    assert caught.value.field == "checkpoint"
    convert(source, tmp_path / "int8", quiet)
    with pytest.raises(InputError, match="scales belong to w8a8"):
        convert(tmp_path / "int8", tmp_path / "again", quiet)
    assert not (tmp_path / "again").exists()
    (tmp_path / "int8" / STATE).write_text("[")
    with pytest.raises(InputError, match="conversion's state"):
        convert(source, tmp_path / "int8", quiet)


def command(*arguments: str) -> int:
    return run_command("convert", ConvertOptions, main, list(arguments))


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = (f"checkpoint={source}", f"into={tmp_path / 'int8'}")
    assert command(*keys, f"output={tmp_path / 'a'}") == 0
    printed = capsys.readouterr().out
    assert "experts" in printed
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert set(result["error"]) == {"dense", "experts", "mtp"}
    assert all(0.001 < error < 0.02 for error in result["error"].values())
    assert result["bytes"] < result["source_bytes"]
    assert command(*keys, f"output={tmp_path / 'b'}") == 0
    again = (tmp_path / "b" / "result.json").read_bytes()
    assert (tmp_path / "a" / "result.json").read_bytes() == again
    assert "3 kept" in capsys.readouterr().out
    assert command(f"checkpoint={source}", f"output={tmp_path}") == 2
    assert command(f"into={tmp_path / 'x'}", f"output={tmp_path}") == 2


def test_memory_is_bounded_by_pieces_and_not_by_files(tmp_path: Path) -> None:
    """A file of 72 MiB in pieces of 1 MiB: the process grows by far less than the file."""
    wide = spec("wide", hidden_size=1024, vocab_size=16384, num_layers=1, ffn_hidden_size=256)
    make_checkpoint(tmp_path / "wide", wide, 0, "bfloat16", contents=Contents(mtp=True))
    code = f"""
from pathlib import Path
from benchmarks.process import peak_mb
import runtime_npu.conversion as c
c.PIECE_BYTES = 2**20
c.quantise_rows(c.torch.ones(4, 4))
before = peak_mb()
c.convert(Path({str(tmp_path / "wide")!r}), Path({str(tmp_path / "int8")!r}), lambda d, t: None)
print(peak_mb() - before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    largest = max(path.stat().st_size for path in (tmp_path / "wide").glob("*.safetensors"))
    assert largest > 64 * 2**20
    assert float(ran.stdout) * 1e6 < largest / 2
    with safe_open(next((tmp_path / "int8").glob("*.safetensors")), framework="pt") as file:
        assert file.keys()
