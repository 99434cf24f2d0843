"""Kernels of served models on A3: scenario, kernel, mean time and input shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from calibration.kernel import KernelRow
from calibration.reading import Line
from calibration.tables.shapes import (
    Shape,
    batch_matmul,
    elements,
    grouped_matmul,
    grouped_matmul_swiglu_quant,
    matmul,
    quant_matmul,
    vector_kernel,
)
from hardware_models.demand import OpSpec
from hardware_models.ops import (
    Combine,
    Dispatch,
    GatingTopK,
    GqaAttention,
    MlaDecodeAttention,
    Sample,
)
from hardware_models.ops.tiling import DType
from hardware_models.shapes import kind_of

COLUMNS = ("scenario", "kernel", "mean_us", "input_shapes", "hardware", "source")

_DIES = {"752T": "a3-752t", "560T": "a3-560t"}
_ROPE = 64

# The gate of DeepSeek-V3's 256 experts is an fp32 product [inferred: its times fit fp32 bytes].
_GATE_COLUMNS = 256


def read(lines: Sequence[Line], path: str) -> list[KernelRow]:
    """Rows of the table; what no model covers keeps its reason."""
    return [_row(line, path) for line in lines]


def _row(line: Line, path: str) -> KernelRow:
    name, _, variant = line.text("kernel").partition("(")
    shapes = line.parsed("input_shapes", parse_shapes, "shapes like 256,7168;7168,2112;2112")
    scenario = line.text("scenario")
    measured_us = line.time_us("mean_us")
    reason = ""
    try:
        spec = _spec(name, variant.rstrip(")"), shapes, scenario)
    except (IndexError, ZeroDivisionError):
        spec, reason = None, f"{name}: the input shapes say too little"
    if spec is None and not reason:
        reason = f"no model of kernel {name}"
        if name.startswith("FusedInferAttentionScore"):
            reason = f"{name}: the scenario names no length of the cache (in4096 out1536)"
    return KernelRow(
        row=f"{path}:{line.number}",
        kind=kind_of(spec) if spec else name,
        setting=f"{line.text('kernel')} {line.fields['input_shapes']} in {scenario}",
        specs=(spec,) if spec else (),
        measured_us=measured_us,
        hardware=die_of(line),
        place="in_network",
        source=line.text("source"),
        reason=reason,
    )


def die_of(line: Line) -> str:
    """The die that the hardware column names."""
    text = line.text("hardware")
    for part, die in _DIES.items():
        if part in text:
            return die
    raise line.fault("hardware", f"a name that holds one of {', '.join(_DIES)}")


def parse_shapes(text: str) -> list[Shape]:
    """``a,b;c`` as [(a, b), (c,)]; an absent tensor is (); ``...`` ends the list.

    Raises:
        ValueError: a dimension is no whole number.
    """
    shapes = []
    for part in text.split(";"):
        if part.strip() == "...":
            break
        shapes.append(tuple(int(x) for x in part.split(",")) if part.strip() else ())
    if not shapes or min((x for shape in shapes for x in shape), default=1) < 1:
        raise ValueError(text)
    return shapes


def _spec(name: str, variant: str, shapes: Sequence[Shape], scenario: str) -> OpSpec | None:
    present = [s for s in shapes if s]
    spec: OpSpec | None
    if name.startswith("QuantBatchMatmul"):
        spec = quant_matmul(shapes)
    elif name.startswith("GroupedMatmulSwigluQuant"):
        spec = grouped_matmul_swiglu_quant(present[0], present[1])
    elif name.startswith("GroupedMatmul"):
        spec = grouped_matmul(present[0], present[1])
    elif name.startswith(("TransposeBatchMatMul", "BatchMatMul")):
        spec = batch_matmul(present[0], present[1])
    elif name.startswith("MatMul"):
        product = matmul(present[0], present[1], "bf16")
        is_gate = product.n == _GATE_COLUMNS and scenario.startswith("DSv3")
        dtype: DType = "fp32" if is_gate else "bf16"
        spec = matmul(present[0], present[1], dtype)
    elif name.startswith("FusedInferAttentionScore"):
        spec = _attention(variant, present, scenario)
    elif name.startswith("MoeGatingTopK"):
        spec = GatingTopK(elements(present[0][:-1]), present[0][-1])
    elif name.startswith("ArgMax"):
        spec = Sample(elements(present[0][:-1]), present[0][-1])
    elif name.startswith(("MoeDistributeDispatch", "MoeDistributeCombine")):
        spec = _exchange(name, present, scenario)
    else:
        spec = vector_kernel(name, shapes)
    return spec


def _exchange(name: str, present: Sequence[Shape], scenario: str) -> OpSpec | None:
    ep = re.search(r"\bEP(\d+)", scenario)
    ids = next((s for s in present[1:] if len(s) == 2 and s[-1] <= 16), None)
    if ep is None or ids is None:
        return None
    rows, width = float(elements(ids)), present[0][-1]
    if "Dispatch" in name:
        return Dispatch(rows, int(ep[1]), width)
    return Combine(rows, int(ep[1]), width)


def _attention(variant: str, present: Sequence[Shape], scenario: str) -> OpSpec | None:
    query, key = present[0], present[1]
    tokens = kv_tokens(scenario)
    if not tokens and ("MLA" in variant or "paged" in variant):
        return None
    if "MLA" in variant:
        sequences, heads, rows, rank = query
        return MlaDecodeAttention(sequences, rows, heads, tokens, rank, _ROPE, "bf16")
    heads, head_dim = query[-2], query[-1]
    lengths = next((s[0] for s in present[3:] if len(s) == 1), 1)
    if "paged" in variant:
        kv_heads = max(1, key[-1] // head_dim)
        return GqaAttention(lengths, max(1, query[0] // lengths), heads, kv_heads, tokens,
                            head_dim, causal=False, dtype="bf16")  # fmt: skip
    rows = max(1, query[0] // lengths)
    return GqaAttention(lengths, rows, heads, key[-2], rows, head_dim, causal=True, dtype="bf16")


def kv_tokens(scenario: str) -> int:
    """Mean KV length of a scenario: the input plus half of the output (``in4096 out1536``)."""

    def number(pattern: str) -> int:
        found = re.search(pattern, scenario)
        if found is None:
            return 0
        return int(found[1]) * (1024 if found[2] else 1)

    return number(r"\bin(\d+)(k?)") + number(r"\bout(\d+)(k?)") // 2
