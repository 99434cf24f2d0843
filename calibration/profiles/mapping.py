"""From a profile's kernels to our op kinds and, where the row says enough, to op specs.

Source of the kernel types: profiles and the operator lists of CANN; what they compute is in
``calibration.tables.shapes`` for vector kernels and here for products, attention and
exchanges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from calibration.kernel import kind_of
from calibration.profiles.kernels import Kernel
from calibration.profiles.tensors import Tensor, element_bytes
from calibration.tables.shapes import (
    FLAT_KERNELS,
    ROW_KERNELS,
    batch_matmul,
    columns,
    elements,
    grouped_matmul_swiglu_quant,
    layout_of,
    matmul,
    quant_matmul,
    vector_kernel,
)
from hardware_models.demand import OpSpec
from hardware_models.ops import (
    BatchMatMul,
    Collective,
    Combine,
    Dispatch,
    GatingTopK,
    GqaAttention,
    GroupedMatMul,
    GroupedMatMulSwigluQuant,
    HcclCollective,
    MatMul,
    MlaDecodeAttention,
    MlaProlog,
    QuantMatMul,
    Sample,
)
from hardware_models.ops.collective import HcclKind
from hardware_models.ops.matmul import Epilogue, Layout
from hardware_models.ops.tiling import ELEMENT_BYTES, DType

_DTYPES: dict[str, DType] = {
    "BF16": "bf16", "BFLOAT16": "bf16", "FLOAT16": "bf16", "FLOAT": "fp32", "FLOAT32": "fp32",
    "INT8": "int8",
}  # fmt: skip
_HCCL: dict[str, HcclKind] = {
    "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "alltoallv": "all_to_all", "alltoallvc": "all_to_all", "allreduce": "all_reduce",
}  # fmt: skip
_EPILOGUES: dict[str, Epilogue] = {"INT32": "int32", "FLOAT16": "fixpipe"}
"""What follows an int8 product without per-token scales, by the type of its output."""

_LARGEST_TOPK = 32
_FRACTAL_ROWS, _FRACTAL_BYTES = 16, 32


@dataclass(frozen=True, slots=True)
class Context:
    """What a kernel's row does not say: mean KV tokens (paged caches), EP, collectives' sizes.

    ``kv_tokens`` and ``ep`` are 0 where not known.  ``groups`` holds the dies of a collective,
    ``moved_mb`` what one of them moved (1e6 bytes) and ``own_us`` its time without waits, by the
    name of its row.
    """

    kv_tokens: int = 0
    ep: int = 0
    groups: Mapping[str, int] = field(default_factory=dict)
    moved_mb: Mapping[str, float] = field(default_factory=dict)
    own_us: Mapping[str, float] = field(default_factory=dict)

    def compared_us(self, kernel: Kernel) -> float | None:
        """The kernel's time without waits; None where those hide it."""
        return self.own_us.get(kernel.name) if kernel.is_communication else kernel.duration_us


@dataclass(frozen=True, slots=True)
class Mapped:
    """A kernel with our kind (empty: none of ours) and its spec, or why there is none."""

    kernel: Kernel
    kind: str
    spec: OpSpec | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Kernels of one type without a spec: how many, and their share of all kernels' time."""

    type: str
    reason: str
    count: int
    time_us: float
    share: float


_Build = Callable[[Kernel, Context], OpSpec]


class _NotSaidError(Exception):
    """The row says too little for a spec; the message says what is missing."""


def map_kernel(kernel: Kernel, context: Context) -> Mapped:
    """Our kind and spec of a kernel; never fails, a reason says why a spec is missing."""
    type_ = type_of(kernel)
    kind, build = _model_of(type_)
    if not kind:
        return Mapped(kernel, "", None, f"no model of kernel {type_ or 'without a type'}")
    try:
        spec = build(kernel, context)
    except _NotSaidError as error:
        return Mapped(kernel, kind, None, f"{type_}: {error}")
    except (IndexError, ValueError, ZeroDivisionError):
        return Mapped(kernel, kind, None, f"{type_}: the input shapes say too little")
    return Mapped(kernel, kind_of(spec), spec)


def kind_of_type(type_: str) -> str:
    """Our kind of a kernel type, before its shapes say more; empty where it is none of ours."""
    return _model_of(type_)[0]


def _model_of(type_: str) -> tuple[str, _Build]:
    found = next((row for row in _KERNELS if row[0].fullmatch(type_)), None)
    return found[1:] if found else (_vector_kind(type_), _vector)


def type_of(kernel: Kernel) -> str:
    """The kernel's type; at Level0 it is read from the name (``aclnnAdd_AddAiCore_Add``)."""
    if kernel.type:
        return kernel.type
    if kernel.is_communication:
        return kernel.name.partition("__")[0] + "_"
    parts = [part for part in kernel.name.split("_") if not part.isdigit()]
    return parts[-1] if parts else ""


class UnmappedTally:
    """Adds up kernels, and lists those without a spec by type and reason."""

    def __init__(self) -> None:
        self._total_us = 0.0
        self._groups: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, mapped: Mapped) -> None:
        """Count one kernel, with or without a spec."""
        self._total_us += mapped.kernel.duration_us
        if mapped.spec is None:
            key = (type_of(mapped.kernel), mapped.reason)
            count, time_us = self._groups.get(key, (0, 0.0))
            self._groups[key] = (count + 1, time_us + mapped.kernel.duration_us)

    def rows(self) -> list[Unmapped]:
        """What has no spec, the longest first; shares are of the time of all kernels."""
        whole = self._total_us or 1.0
        found = [
            Unmapped(type_, reason, count, time_us, time_us / whole)
            for (type_, reason), (count, time_us) in self._groups.items()
        ]
        return sorted(found, key=lambda row: (-row.time_us, row.type, row.reason))


def _vector_kind(type_: str) -> str:
    if type_.startswith(("Gather", "EmbeddingLookup", "Index", "Scatter")):
        return "gather"
    return ROW_KERNELS.get(type_) or FLAT_KERNELS.get(type_) or ""


def _present(kernel: Kernel) -> list[Tensor]:
    found = [tensor.plain for tensor in kernel.inputs if tensor.shape]
    if not found:
        raise _NotSaidError("no input shapes were recorded")
    if min(min(tensor.shape) for tensor in found) < 1:
        raise _NotSaidError("an operand is empty")
    return found


def _output(kernel: Kernel) -> Tensor:
    return kernel.outputs[0].plain if kernel.outputs else Tensor(())


def _dtype(tensor: Tensor) -> DType:
    name = tensor.dtype.removeprefix("DT_")
    if name not in _DTYPES:
        raise _NotSaidError(f"no model of type {name or 'unknown'}")
    return _DTYPES[name]


def _vector(kernel: Kernel, context: Context) -> OpSpec:
    size = element_bytes(_present(kernel)[0].dtype)
    if type_of(kernel).startswith(("Index", "Scatter")):
        raise _NotSaidError("which elements it moves is not in the row")
    spec = vector_kernel(type_of(kernel), [tensor.shape for tensor in kernel.inputs], size)
    if spec is None:
        raise _NotSaidError("the input shapes say too little")
    return spec


def _matmul(kernel: Kernel, context: Context) -> OpSpec:
    x, w = _present(kernel)[:2]
    dtype = _dtype(x)
    out = _output(kernel).shape
    raw = [tensor for tensor in kernel.inputs if tensor.shape][1]
    layout: Layout = "nz" if "FRACTAL_NZ" in raw.format else layout_of(raw.shape)
    if len(x.shape) == len(out) == 2:
        # Either operand may be transposed; the result says which dimension is summed over.
        m, n = out
        k = x.elements // m
        if m * k == x.elements and w.elements in (k * n, _padded(k, n, layout, dtype)):
            return MatMul(m, k, n, dtype, "w", layout)
    return replace(matmul(x.shape, w.shape, dtype), layout=layout)


def _padded(k: int, n: int, layout: Layout, dtype: DType) -> int:
    """Elements of a ``[k, n]`` weight: FRACTAL_NZ holds whole fractals of 16 rows x 32 bytes."""
    if layout == "nd":
        return k * n
    columns_of_one = _FRACTAL_BYTES // ELEMENT_BYTES[dtype]
    return (
        math.ceil(k / _FRACTAL_ROWS)
        * _FRACTAL_ROWS
        * (math.ceil(n / columns_of_one) * columns_of_one)
    )


def _quant_matmul(kernel: Kernel, context: Context) -> OpSpec:
    _present(kernel)
    spec = quant_matmul([tensor.plain.shape for tensor in kernel.inputs])
    out = _output(kernel).dtype.removeprefix("DT_")
    if spec.epilogue == "static" and out in _EPILOGUES:
        return replace(spec, epilogue=_EPILOGUES[out])
    return spec


def _batch_matmul(kernel: Kernel, context: Context) -> OpSpec:
    x, w = _present(kernel)[:2]
    out = _output(kernel)
    if out.elements:
        # Rows of all batches times n; what is left of x and w is k and the batch.
        n = out.shape[-1]
        rows = out.elements // n
        k = x.elements // rows
        batch = w.elements // (k * n)
        if rows * k == x.elements and batch * k * n == w.elements and rows % batch == 0:
            return BatchMatMul(batch, rows // batch, k, n, _dtype(x), "w")
    return replace(batch_matmul(x.shape, w.shape), dtype=_dtype(x))


def _grouped_matmul(kernel: Kernel, context: Context) -> OpSpec:
    x, w = _present(kernel)[:2]
    rows, k, experts = elements(x.shape[:-1]), x.shape[-1], w.shape[0]
    active = float(min(experts, rows))
    n = columns(w.shape, k, experts)
    return GroupedMatMul(float(rows), k, n, active, _dtype(x), "w")


def _grouped_swiglu(kernel: Kernel, context: Context) -> OpSpec:
    x, w = _present(kernel)[:2]
    return grouped_matmul_swiglu_quant(x.shape, w.shape)


def _gating(kernel: Kernel, context: Context) -> OpSpec:
    x = _present(kernel)[0].shape
    return GatingTopK(elements(x[:-1]), x[-1])


def _sample(kernel: Kernel, context: Context) -> OpSpec:
    x = _present(kernel)[0].shape
    return Sample(elements(x[:-1]), x[-1])


def _exchange(kernel: Kernel, context: Context) -> OpSpec:
    present = _present(kernel)
    if not context.ep:
        raise _NotSaidError("its expert parallelism is not in the row (give ep=)")
    ids = next(
        (t.shape for t in present[1:] if len(t.shape) == 2 and t.shape[-1] <= _LARGEST_TOPK), None
    )
    if ids is None:
        raise _NotSaidError("no expert ids among the inputs")
    cls = Dispatch if "Dispatch" in type_of(kernel) else Combine
    return cls(float(elements(ids)), context.ep, present[0].shape[-1])


def _prolog(kernel: Kernel, context: Context) -> OpSpec:
    x, q_a, _, uk, kv_a = _present(kernel)[:5]
    heads, nope, kv_rank = uk.shape
    hidden = x.shape[-1]
    rope = columns(kv_a.shape, hidden) - kv_rank
    if rope < 1:
        raise _NotSaidError("weights that are no MLA prolog's")
    return MlaProlog(elements(x.shape[:-1]), hidden, columns(q_a.shape, hidden), kv_rank, rope,
                     nope, heads, _dtype(x), ("w1", "w2", "w3", "w4"))  # fmt: skip


def _attention(kernel: Kernel, context: Context) -> OpSpec:
    present = _present(kernel)
    if len(present) < 3:
        raise _NotSaidError("less than three operands")
    if not context.kv_tokens:
        raise _NotSaidError("its KV length is not in the row (give kv_tokens=)")
    query, key, value = (tensor.shape for tensor in present[:3])
    rope = next((t.shape[-1] for t in present[3:] if t.shape[:-1] == query[:-1]), 0)
    if key == value and rope and len(query) == 4:
        sequences, rows, heads, rank = query
        return MlaDecodeAttention(sequences, rows, heads, context.kv_tokens, rank, rope,
                                  _dtype(present[0]))  # fmt: skip
    if len(query) != 3:
        raise _NotSaidError("a layout that is not TND")
    lengths = next((t.shape[0] for t in present[3:] if len(t.shape) == 1), 1)
    kv_heads = key[-2] if len(key) > 3 else max(1, key[-1] // query[-1])
    return GqaAttention(lengths, max(1, query[0] // lengths), query[1], kv_heads,
                        context.kv_tokens, query[2], False, _dtype(present[0]))  # fmt: skip


def _collective(kernel: Kernel, context: Context) -> OpSpec:
    name = re.sub(r"[^a-z]", "", kernel.name.partition("__")[0].lower()).removeprefix("hcom")
    if name not in _HCCL:
        raise _NotSaidError("no collective that is modelled")
    group, moved_mb = context.groups.get(kernel.name, 0), context.moved_mb.get(kernel.name, 0.0)
    if group < 2 or not moved_mb:
        raise _NotSaidError("its group and bytes are not known")
    # Every die moves all of the message but its own share, for an all-reduce twice.
    passes = 2 if _HCCL[name] == "all_reduce" else 1
    spec = HcclCollective(_HCCL[name], group, moved_mb * 1e6 * group / ((group - 1) * passes))
    return in_steps(spec) if kernel.by_vector_cores else spec


def in_steps(spec: HcclCollective) -> Collective:
    """The same collective as the ops of a step have it, by what one die contributes or holds."""
    whole = spec.op in ("all_to_all", "all_reduce")
    return Collective(spec.op, spec.group, round(spec.message_bytes / (1 if whole else spec.group)))


_KERNELS: tuple[tuple[re.Pattern[str], str, _Build], ...] = tuple(
    (re.compile(pattern), kind, build)
    for pattern, kind, build in (
        (r"MatMul(V\d)?(Common)?", MatMul.kind, _matmul),
        (r"QuantBatchMatmul(V\d)?", QuantMatMul.kind, _quant_matmul),
        (r"(Transpose)?BatchMatMul(V\d)?", BatchMatMul.kind, _batch_matmul),
        (r"GroupedMatmul(V\d)?", GroupedMatMul.kind, _grouped_matmul),
        (r"GroupedMatmulSwigluQuant(V\d)?", GroupedMatMulSwigluQuant.kind, _grouped_swiglu),
        (r"MoeGatingTopK(Softmax)?(V\d)?", GatingTopK.kind, _gating),
        (r"ArgMax(V\d|WithValue)?", Sample.kind, _sample),
        (r"MoeDistributeDispatch(V\d)?", Dispatch.kind, _exchange),
        (r"MoeDistributeCombine(V\d)?", Combine.kind, _exchange),
        (r"MlaProlog(V\d)?", MlaProlog.kind, _prolog),
        (r"FusedInferAttentionScore(V\d)?", GqaAttention.kind, _attention),
        (r"hcom_\w*", HcclCollective.kind, _collective),
    )
)
"""Kernels that are no row ops: the whole type, our kind, and how its spec is made.

Fused kernels that are not here (MatMulAllReduce, GroupedMatmulFinalizeRouting) do more than
their first part and are left out."""
