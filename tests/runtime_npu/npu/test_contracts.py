"""Contracts of the fused ops: what is wrong is refused by us, what is right the wheel takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from op_cases import EXCHANGE, calls
from op_outputs import OUTPUTS

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from runtime_npu.npu import transfer_ops
from runtime_npu.npu.limits import check_core_limit
from runtime_npu.npu_ops import DIRECT_OPS, NEEDED_OPS
from runtime_npu.parallel.link import Link
from runtime_npu.standins.process import run_on_standins
from twin.memory import exchange_buffer_mib

CASES = calls(lambda *sizes, dtype=torch.bfloat16: torch.empty(*sizes, dtype=dtype, device="meta"))

FREE = {
    # An op that looks at one tensor alone, and tensors that only it defines the size of.
    ("npu_fused_infer_attention_score_v2", "block_table", 1),
    ("npu_dynamic_quant", "x", 0),
    ("npu_dynamic_quant", "x", 1),
    ("npu_swiglu", "x", 0),
    ("npu_rms_norm", "x", 0),
    ("npu_prefetch", "weight", 0),
    ("npu_prefetch", "weight", 1),
    ("npu_prefetch", "after", 0),
    ("npu_prefetch", "after", 1),
    # Rows: as many as there are, where nothing else counts them.
    ("npu_transpose_batchmatmul", "x", 1),
    ("npu_transpose_batchmatmul rows first", "x", 0),
    ("npu_transpose_batchmatmul", "weight", 2),
    ("npu_transpose_batchmatmul rows first", "weight", 2),
    ("npu_quant_matmul sums", "x", 0),
    ("npu_grouped_matmul sums", "x", 0),
    ("npu_grouped_matmul sums", "weight", 2),
    ("npu_grouped_matmul bf16", "x", 0),
    ("npu_grouped_matmul bf16", "weight", 2),
    ("npu_moe_gating_top_k", "logits", 0),
    ("npu_moe_distribute_dispatch_v2", "x", 1),
    ("npu_moe_distribute_dispatch_v2", "ids", 1),
    ("npu_moe_distribute_combine_v2", "x", 1),
    ("npu_moe_init_routing_v2", "x", 1),
    ("npu_moe_init_routing_v2", "ids", 1),
    ("npu_fused_infer_attention_score_v2 of prompts", "values", 2),
    ("npu_interleave_rope", "x", 1),
    ("npu_moe_init_routing_v2 quantised", "x", 1),
    ("npu_moe_init_routing_v2 quantised", "ids", 1),
    *(
        (name, argument, axis)
        for name in ("npu_moe_re_routing", "npu_moe_re_routing bf16")
        for argument in ("rows", "counts")
        for axis in (0, 1)
        if (name, argument, axis) != ("npu_moe_re_routing", "rows", 0)
    ),
    ("npu_moe_finalize_routing", "rows", 1),
}


def tensors() -> Iterator[tuple[str, str]]:
    for name, (_, arguments) in CASES.items():
        for argument, value in arguments.items():
            if isinstance(value, (torch.Tensor, list)):
                first = value[0] if isinstance(value, list) else value
                if isinstance(first, torch.Tensor):
                    yield name, argument


def with_first(value: Any, tensor: torch.Tensor) -> Any:
    return [tensor, *value[1:]] if isinstance(value, list) else tensor


def refused(name: str, **changed: Any) -> InputError:
    function, arguments = CASES[name]
    with pytest.raises(InputError) as caught:
        function(**{**arguments, **changed})
    assert caught.value.field.startswith(name.split(maxsplit=1)[0])
    return caught.value


@pytest.mark.parametrize(("name", "argument"), list(tensors()))
def test_a_wrong_dtype_is_refused(name: str, argument: str) -> None:
    if name == "npu_prefetch":
        return  # bytes are bytes
    value = CASES[name][1][argument]
    first = value[0] if isinstance(value, list) else value
    error = refused(name, **{argument: with_first(value, first.to(torch.float64))})
    assert error.field.endswith("dtype")


@pytest.mark.parametrize(("name", "argument"), list(tensors()))
def test_a_size_that_fits_nothing_is_refused(name: str, argument: str) -> None:
    value = CASES[name][1][argument]
    first = value[0] if isinstance(value, list) else value
    base = name.split(" with ", maxsplit=1)[0]
    for axis in range(first.dim()):
        if (base, argument, axis) in FREE:
            continue
        sizes = list(first.shape)
        sizes[axis] += 1
        refused(name, **{argument: with_first(value, first.new_empty(sizes))})


@pytest.mark.parametrize(("name", "argument", "axis"), sorted(FREE))
def test_a_free_size_is_free(name: str, argument: str, axis: int) -> None:
    function, arguments = CASES[name]
    sizes = list(arguments[argument].shape)
    sizes[axis] += 2  # SwiGLU halves its columns
    changed = {argument: arguments[argument].new_empty(sizes)}
    with pytest.raises(AttributeError, match="npu"):
        function(**{**arguments, **changed})


def test_direct_transfers_take_what_their_windows_are_made_for() -> None:
    op = "npu_attention_to_ffn"
    assert refused(op, turn=2).field == f"{op}.micro_batch_id"
    assert refused(op, quantise=False).field == f"{op}.ffn_token_data element bytes"
    forms = CASES[op][1]["forms"]
    assert refused(op, forms=replace(forms, group="")).field == f"{op}.group"
    assert refused(op, forms=replace(forms, experts=23)).field == f"{op}.moe_expert_num"
    assert refused("npu_ffn_worker_batching", dtype=torch.bfloat16).allowed == "2"


@pytest.mark.parametrize(("name", "argument"), list(tensors()))
def test_another_number_of_axes_is_refused(name: str, argument: str) -> None:
    if name == "npu_prefetch":
        return
    value = CASES[name][1][argument]
    first = value[0] if isinstance(value, list) else value
    refused(name, **{argument: with_first(value, first.unsqueeze(0))})


@pytest.mark.parametrize("name", CASES)
def test_a_right_call_reaches_the_op(name: str) -> None:
    function, arguments = CASES[name]
    # Without torch_npu there is no op to reach: that is what must be missed, and nothing else.
    with pytest.raises((AttributeError, ModuleNotFoundError)) as caught:
        function(**arguments)
    assert "npu" in str(caught.value) or "torchair" in str(caught.value)


def test_every_op_needed_has_a_case() -> None:
    assert {name.split()[0] for name in CASES} == {*NEEDED_OPS, *DIRECT_OPS}
    assert set(OUTPUTS) == set(CASES)


def ids(rows: int, topk: int = 12) -> torch.Tensor:
    return torch.empty(rows, topk, dtype=torch.int32, device="meta")


def rows_of(rows: int, hidden: int = 6144) -> torch.Tensor:
    return torch.empty(rows, hidden, dtype=torch.bfloat16, device="meta")


DISPATCH = "npu_moe_distribute_dispatch_v2"


def test_an_inner_size_that_differs_is_refused_though_the_wheel_takes_it() -> None:
    weight = torch.empty(4, 6000, 4096, dtype=torch.bfloat16, device="meta")
    error = refused("npu_grouped_matmul bf16", weight=weight)
    assert error.field == "npu_grouped_matmul.weight.shape"
    assert "6144" in error.allowed


def test_more_than_512_rows_are_refused() -> None:
    exchange = replace(EXCHANGE, rows=513)
    error = refused(DISPATCH, x=rows_of(513), ids=ids(513), exchange=exchange)
    assert (error.field, error.value) == (f"{DISPATCH}.Bs (rows of x)", 513)
    assert error.allowed == "1 to 512"


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("H", {"x": rows_of(12, 512)}),
        ("H", {"x": rows_of(12, 8193)}),
        ("K", {"ids": ids(12, 17)}),
        ("ep_world_size", {"exchange": replace(EXCHANGE, ranks=96)}),
        ("ep_world_size", {"exchange": replace(EXCHANGE, ranks=1, rank=0)}),
        ("ep_world_size", {"exchange": replace(EXCHANGE, ranks=1024, experts=1024)}),
        ("ep_rank_id", {"exchange": replace(EXCHANGE, rank=128)}),
        ("moe_expert_num", {"exchange": replace(EXCHANGE, experts=1025)}),
        ("maxBs", {"exchange": replace(EXCHANGE, rows=11)}),
        ("copy_expert_num", {"exchange": replace(EXCHANGE, copies=-1)}),
        ("group_ep", {"exchange": replace(EXCHANGE, group="")}),
    ],
)
def test_limits_of_dispatch_are_refused(field: str, changed: dict[str, Any]) -> None:
    assert refused(DISPATCH, **changed).field.startswith(f"{DISPATCH}.{field}")


def test_limits_of_the_merge_are_refused() -> None:
    name = "npu_attention_update"
    output = torch.empty(8, 128, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(8, dtype=torch.float32, device="meta")
    assert refused(name, outputs=[output] * 17, lse=[lse] * 17).field.endswith("parts")
    for width in (4, 132, 520):
        wrong = output.new_empty(8, width)
        assert "shape[1]" in refused(name, outputs=[wrong], lse=[lse]).field


def test_rows_of_sequences_must_add_up() -> None:
    name = "npu_fused_infer_attention_score_v2"
    for last_rows in ([3, 6, 9, 11], [3, 3, 9, 12], [6, 3, 9, 12]):
        assert refused(name, last_rows=last_rows).field.endswith("actual_seq_qlen")
    assert refused(name, kv_lengths=[4608] * 3).field.endswith("actual_seq_kvlen")


def test_transfers_take_rows_of_floats() -> None:
    for wrong in (rows_of(12).to(torch.int8), rows_of(12)[0]):
        with pytest.raises(InputError, match=r"send\.x"):
            transfer_ops.send(wrong, Link(1, 1, None), tag=0)


def test_a_negative_prefetch_is_refused_and_none_is_nothing() -> None:
    assert refused("npu_prefetch", max_bytes=-1).value == -1
    function, arguments = CASES["npu_prefetch"]
    assert function(**{**arguments, "max_bytes": 0}) == 0


@pytest.mark.parametrize(
    ("aic", "aiv", "field"),
    [(25, 48, "op_aicore_num"), (0, 48, "op_aicore_num"), (24, 49, "op_vectorcore_num")],
)
def test_a_core_limit_outside_the_die_is_refused(aic: int, aiv: int, field: str) -> None:
    hardware = load_hardware("a3-752t")
    check_core_limit(24, 48, hardware)
    with pytest.raises(InputError, match=field):
        check_core_limit(aic, aiv, hardware)


def test_the_buffer_of_the_published_case_is_608_mb_and_11_of_its_own() -> None:
    needed = exchange_buffer_mib(local_experts=64, rows=512, ranks=2, hidden=2048, topk=8)
    assert needed == 608 + 11


@pytest.mark.parametrize("way", ["fake", "host"])
@pytest.mark.usefixtures("standins")
def test_the_real_wheel_takes_every_call_and_gives_our_shapes(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the wheel's schemas and shape functions, and against its host code."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = run_on_standins("child_shapes", [way])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("prefetched bytes") == 6144 * (512 + 64) * 2
    expected = {
        name: [[list(shape), dtype] for shape, dtype in outputs]
        for name, outputs in OUTPUTS.items()
        if way == "fake" or "on the device" not in name
    }
    assert found == expected
