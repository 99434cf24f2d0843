"""Kernel measurements: one published latency of one launch (or of a named few in a row)."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Literal, get_args, get_type_hints

from hardware_models.demand import OpSpec
from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from hardware_models.ops import (
    BatchMatMul,
    BulkExchange,
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
    RowOp,
    Sample,
)
from hardware_models.ops.alone import alone_us
from hardware_models.shapes import kind_of

__all__ = ["KernelRow", "Place", "kind_of", "parse_specs", "spec_text"]

Place = Literal["isolated", "in_network"]
"""Where a latency was taken: in a benchmark loop of its own, or inside a served model."""

_WEIGHTS = ("weight", "weights")
_CLASSES: dict[str, type[OpSpec]] = {
    cls.kind: cls
    for cls in (
        BatchMatMul, BulkExchange, Combine, Dispatch, GatingTopK, GqaAttention, GroupedMatMul,
        GroupedMatMulSwigluQuant, HcclCollective, MatMul, MlaDecodeAttention, MlaProlog,
        QuantMatMul, RowOp, Sample,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One row of a kernel table.

    ``specs`` are the launches that the measured time covers, empty where no model covers the
    row; ``reason`` then says why.  ``kind`` groups rows that share a form and its parameters.
    """

    row: str
    kind: str
    setting: str
    specs: tuple[OpSpec, ...]
    measured_us: float
    hardware: str
    place: Place
    source: str
    reason: str = ""

    def predicted_us(self, hardware: Hardware) -> float:
        """The launches' latencies on a die of their own, one after the other."""
        return sum(alone_us(spec, hardware) for spec in self.specs)


def spec_text(specs: tuple[OpSpec, ...]) -> str:
    """Specs as text: ``matmul m=1 k=7168 n=256 dtype=fp32``, joined by `` + ``."""
    return " + ".join(_one_text(spec) for spec in specs)


def _one_text(spec: OpSpec) -> str:
    parts = [spec.kind]
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name in _WEIGHTS or value == field.default:
            continue
        text = "/".join(str(x) for x in value) if isinstance(value, tuple) else str(value)
        parts.append(f"{field.name}={text}")
    return " ".join(parts)


def parse_specs(text: str, column: str, where: str) -> tuple[OpSpec, ...]:
    """The specs that :func:`spec_text` wrote.

    Raises:
        InputError: unknown op, unknown or missing field, or a value of the wrong type.
    """
    return tuple(_parse_one(part, column, where) for part in text.split(" + "))


def _parse_one(text: str, column: str, where: str) -> OpSpec:
    name, *pairs = text.split()
    if name not in _CLASSES:
        raise InputError(column, name, f"an op: {', '.join(sorted(_CLASSES))}", where)
    cls = _CLASSES[name]
    hints = get_type_hints(cls)
    given = dict(pair.partition("=")[::2] for pair in pairs)
    values: dict[str, object] = {}
    for field in fields(cls):
        if field.name in _WEIGHTS:
            values[field.name] = "w" if field.name == "weight" else ("w1", "w2", "w3", "w4")
        elif field.name in given:
            values[field.name] = _value(given.pop(field.name), hints[field.name], column, where)
        elif field.default is MISSING:
            raise InputError(column, text, f"a value for {field.name}", where)
    if given:
        raise InputError(column, ", ".join(given), f"fields of {name}", where)
    return cls(**values)


def _value(text: str, hint: object, column: str, where: str) -> object:
    try:
        if hint is int:
            return _positive(int(text))
        if hint is float:
            return _positive(float(text))
        if hint is bool:
            return {"True": True, "False": False}[text]
        if choices := get_args(hint):
            if choices[0] is int:
                return tuple(int(x) for x in text.split("/"))
            if text in choices:
                return text
    except (ValueError, KeyError):
        pass
    raise InputError(column, text, f"a value of {getattr(hint, '__name__', hint)}", where)


def _positive(value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(value)
    return value
