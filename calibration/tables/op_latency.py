"""Op benchmarks of a 910B2 (each op alone): shapes, types and attributes as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from calibration.kernel import KernelRow
from calibration.reading import Line
from calibration.tables.shapes import Shape, by_row, elements, flat, transposed
from hardware_models.demand import OpSpec
from hardware_models.ops import (
    GatingTopK,
    GqaAttention,
    GroupedMatMul,
    GroupedMatMulSwigluQuant,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    QuantMatMul,
)
from hardware_models.ops.tiling import DType
from hardware_models.ops.vector import RowKind
from hardware_models.shapes import kind_of

COLUMNS = (
    "hw", "op", "case_id", "input_shape", "dtype", "attrs", "baseline_perf_us",
    "baseline_is_placeholder_10x", "note", "source",
)  # fmt: skip

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "int8": 1, "uint8": 1,
          "int64": 8, "bool": 1, "int16": 2, "float64": 8}  # fmt: skip
_ROW_OPS: dict[str, RowKind] = {
    "rms_norm": "rms_norm",
    "add_rms_norm": "add_rms_norm",
    "add_rms_norm_dynamic_quant": "add_rms_norm_quant",
    "dynamic_quant": "dynamic_quant",
    "dequant_swiglu_quant": "dequant_swiglu_quant",
    "softmax": "softmax",
    "moe_re_routing": "re_routing",
    "moe_finalize_routing": "finalize_routing",
}
_FLAT_OPS: dict[str, RowKind] = {
    "sigmoid": "activation", "gelu": "activation", "silu": "activation", "exp": "exp",
    "maximum": "add", "minimum": "add", "add": "add", "mul": "add", "sub": "add", "div": "add",
    "cast": "cast", "masked_fill": "select", "where": "select",
    "concat": "move", "split": "move", "slice": "move", "pad": "move",
}  # fmt: skip

_OUT_OF_SCOPE = {"sparse_flash_attention": "LongCat-Flash attends to every token"}


def read(lines: Sequence[Line], path: str) -> list[KernelRow]:
    """Rows of the table; what no model covers keeps its reason."""
    return [_row(line, path) for line in lines]


def _row(line: Line, path: str) -> KernelRow:
    shapes = line.parsed("input_shape", _shapes, "a JSON list of shapes")
    types = line.parsed("dtype", json.loads, "a JSON list of types")
    attributes = line.parsed("attrs", json.loads, "a JSON object of attributes")
    op, note = line.text("op"), line.fields["note"]
    measured_us = line.time_us("baseline_perf_us")
    specs: tuple[OpSpec, ...] = ()
    reason = ""
    if line.text("hw") != "910b2":
        raise line.fault("hw", "910b2")
    if line.text("baseline_is_placeholder_10x") != "N":
        reason = "the table marks the time as a placeholder"
    elif op in _OUT_OF_SCOPE:
        reason = f"{op}: out of scope, {_OUT_OF_SCOPE[op]}"
    elif "NO_NPU_IMPL" in note or "fallback to CPU" in note:
        reason = f"{op}: timed on the CPU, no kernel on the die"
    else:
        try:
            specs = _specs(op, shapes, types, attributes, note)
        except (KeyError, IndexError, TypeError, ZeroDivisionError, ValueError):
            reason = f"{op}: shapes, types or attributes that the model does not know"
        if not specs and not reason:
            reason = f"no model of op {op}"
    return KernelRow(
        row=f"{path}:{line.number}",
        kind=_kind(op, specs),
        setting=f"{op} case {line.text('case_id')} {line.fields['input_shape']} {types}",
        specs=specs,
        measured_us=measured_us,
        hardware="910b2",
        place="isolated",
        source=line.text("source"),
        reason=reason,
    )


def _kind(op: str, specs: Sequence[OpSpec]) -> str:
    """Composite baselines (several kernels in a row) are kept apart from single kernels."""
    if len(specs) > 1 or not specs:
        return op
    return kind_of(specs[0])


def _shapes(text: str) -> list[Shape]:
    loaded = json.loads(text)
    shapes = [tuple(int(x) for x in shape) if shape is not None else () for shape in loaded]
    if not shapes or not shapes[0] or min(min(s, default=1) for s in shapes) < 1:
        raise ValueError(text)
    return shapes


def _specs(
    op: str, shapes: list[Shape], types: list[str | None], attributes: dict[str, Any], note: str
) -> tuple[OpSpec, ...]:
    x, size = shapes[0], _BYTES[str(types[0])]
    if op in _MODELS:
        return _MODELS[op](shapes, types, attributes)
    if op in _ROW_OPS and attributes.get("dim", -1) in (-1, len(x) - 1):
        return (by_row(_ROW_OPS[op], x, size),)
    if op == "transpose":
        return (transposed(x, attributes.get("perm"), size),)
    if op in _FLAT_OPS:
        spec = flat(_FLAT_OPS[op], max(elements(s) for s in shapes if s), size)
        return (spec,) * _launches(note)
    return _composite(op, shapes, size, attributes, _launches(note))


def _composite(
    op: str, shapes: list[Shape], size: int, attributes: dict[str, Any], launches: int
) -> tuple[OpSpec, ...]:
    """Baselines that re-lay their input first: the last launch is the op itself."""
    x = shapes[0]
    if op == "swi_glu" and attributes.get("dim", -1) in (-1, len(x) - 1):
        return (by_row("swiglu", x, size),)
    if op == "swi_glu":
        # Halves along another axis: one half is copied, and long runs are dealt over all cores.
        main: OpSpec = flat("swiglu", elements(x), size)
        helper = flat("move", elements(x) // 2, size)
    elif op == "gather":
        # Table, indices and result are each transposed so that the last axis is gathered.
        index = shapes[1]
        main = flat("gather", elements(index), size)
        if launches > 3:
            around = (transposed(x, None, size), transposed(index, None, 4),
                      transposed(index, None, size))  # fmt: skip
            return (*around, main)
        helper = transposed(x, None, size)
    elif op == "apply_rotary_pos_emb":
        main, helper = flat("rope", 2 * elements(x), size), flat("move", elements(shapes[-1]), size)
    else:
        return ()
    return (*(helper,) * (launches - 1), main)


def _launches(note: str) -> int:
    """Kernels of the baseline: ``A×1 + B×2`` is three."""
    listed = note.partition("baseline_kernels:")[2]
    count = sum(int(count) for count in re.findall(r"×(\d+)", listed))
    # A fused elementwise kernel does the work of two: scale or shift, then the function.
    return max(1, count + listed.count("AutomaticBufferFusionOp"))


def _dtype(name: str | None) -> DType:
    kinds: dict[str, DType] = {"float16": "bf16", "bfloat16": "bf16", "float32": "fp32",
                               "int8": "int8"}  # fmt: skip
    return kinds[str(name)]


def _prolog(
    shapes: list[Shape], types: list[str | None], attributes: dict[str, Any]
) -> tuple[OpSpec, ...]:
    x, q_a, _, uk, kv_a = shapes[:5]
    heads, nope, kv_rank = uk
    return (
        MlaProlog(elements(x[:-1]), x[-1], q_a[1], kv_rank, kv_a[1] - kv_rank, nope, heads,
                  _dtype(types[0]), ("w1", "w2", "w3", "w4")),
    )  # fmt: skip


def _mla(
    shapes: list[Shape], types: list[str | None], attributes: dict[str, Any]
) -> tuple[OpSpec, ...]:
    query, rope, key = shapes[0], shapes[1], shapes[2]
    token_axis = 1 if attributes.get("inputLayout", "BSND") == "BSND" else 2
    rows, heads = query[token_axis], query[3 - token_axis]
    return (
        MlaDecodeAttention(
            query[0], rows, heads, key[token_axis], query[3], rope[3], _dtype(types[0])
        ),
    )


def _gqa(
    shapes: list[Shape], types: list[str | None], attributes: dict[str, Any]
) -> tuple[OpSpec, ...]:
    sequences, rows, heads, head_dim = shapes[0]
    tokens, kv_heads = shapes[1][1], shapes[1][2]
    return (
        GqaAttention(sequences, rows, heads, kv_heads, tokens, head_dim,
                     bool(attributes["is_causal"]), _dtype(types[0])),
    )  # fmt: skip


def _quant_matmul(
    shapes: list[Shape], types: list[str | None], attributes: dict[str, Any]
) -> tuple[OpSpec, ...]:
    x, w = shapes[0], shapes[1]
    per_token = len(shapes) > 4 and bool(shapes[4])
    on_vector = per_token or attributes.get("output_dtype") == "bfloat16"
    m, k = elements(x[:-1]), x[-1]
    n = w[-1] if w[-2] == k else w[-2]
    if len(w) == 3 and w[0] > 1:
        # One launch over a batch of products; each batch has a weight of its own.
        rows = elements(x[:-1])
        return (GroupedMatMul(float(rows), k, n, float(w[0]), "int8", "w"),)
    return (QuantMatMul(m, k, n, "w", "vector" if on_vector else "fixpipe"),)


def _groups(attributes: dict[str, Any]) -> tuple[int, ...]:
    """Rows of each expert that has any, from where their groups end."""
    ends = attributes["group_list"]
    return tuple(b - a for a, b in zip([0, *ends], ends, strict=False) if b > a)


def _grouped(
    shapes: list[Shape], types: list[str | None], attributes: dict[str, Any]
) -> tuple[OpSpec, ...]:
    x, w = shapes[0], shapes[1]
    groups = _groups(attributes)
    n = w[1] if attributes.get("transpose_weight") else w[2]
    return (
        GroupedMatMul(
            float(sum(groups)), x[1], n, float(len(groups)), _dtype(types[0]), "w", groups
        ),
    )


def _grouped_swiglu(
    shapes: list[Shape], types: list[str | None], attributes: dict[str, Any]
) -> tuple[OpSpec, ...]:
    # The baseline first re-lays the whole weight (TransData), then runs the fused kernel.
    k, n = shapes[1][1:]
    groups = _groups(attributes)
    rows, experts = float(sum(groups)), float(len(groups))
    return (
        flat("weight_relayout", elements(shapes[1]), 1),
        GroupedMatMulSwigluQuant(rows, k, n, experts, "w", groups),
    )


def _matmul(
    shapes: list[Shape], types: list[str | None], attributes: dict[str, Any]
) -> tuple[OpSpec, ...]:
    x, w = shapes[0], shapes[1]
    n = w[-1] if w[-2] == x[-1] else w[-2]
    return (MatMul(elements(x[:-1]), x[-1], n, _dtype(types[0]), "w"),)


def _gating(
    shapes: list[Shape], types: list[str | None], attributes: dict[str, Any]
) -> tuple[OpSpec, ...]:
    return (GatingTopK(elements(shapes[0][:-1]), shapes[0][-1]),)


_Model = Callable[[list[Shape], list[str | None], dict[str, Any]], tuple[OpSpec, ...]]
_MODELS: dict[str, _Model] = {
    "mla_prolog": _prolog,
    "mla": _mla,
    "mha": _gqa,
    "gqa": _gqa,
    "quant_matmul": _quant_matmul,
    "grouped_matmul": _grouped,
    "grouped_matmul_swiglu_quant": _grouped_swiglu,
    "matmul": _matmul,
    "moe_gating_top_k": _gating,
    "moe_gating_top_k_softmax": _gating,
}
