"""Tensors of a kernel: shapes, types and formats as profilers print them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

MOST_DIMENSIONS = 16
MOST_ELEMENTS = 1 << 48
_LONGEST_TEXT = 1 << 16
_NZ_DIMENSIONS = 4

_ELEMENT_BYTES = {
    "FLOAT": 4, "FLOAT32": 4, "INT32": 4, "UINT32": 4, "HF32": 4,
    "FLOAT16": 2, "BF16": 2, "BFLOAT16": 2, "INT16": 2, "UINT16": 2,
    "INT8": 1, "UINT8": 1, "BOOL": 1, "FLOAT8_E4M3FN": 1, "FLOAT8_E5M2": 1, "HIFLOAT8": 1,
    "INT64": 8, "UINT64": 8, "DOUBLE": 8, "COMPLEX64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One operand: its dimensions (empty for a scalar or an absent operand), type and format."""

    shape: tuple[int, ...]
    dtype: str = ""
    format: str = ""

    @property
    def elements(self) -> int:
        """Elements; a scalar or absent operand has none that matter."""
        count = 1 if self.shape else 0
        for size in self.shape:
            count *= size
        return count

    @property
    def plain(self) -> Tensor:
        """The operand without the blocks of FRACTAL_NZ: [.., n/c, m/16, 16, c] is [.., m, n]."""
        if "FRACTAL_NZ" not in self.format or len(self.shape) < _NZ_DIMENSIONS:
            return self
        *outer, columns, rows, inner_rows, inner_columns = self.shape
        shape = (*outer, rows * inner_rows, columns * inner_columns)
        return Tensor(shape, self.dtype, "ND")

    @property
    def bytes(self) -> int:
        """Bytes in memory; a type that is not known counts two a value."""
        return self.elements * element_bytes(self.dtype)


def element_bytes(dtype: str) -> int:
    """Bytes of one element: ``DT_BF16`` and ``BF16`` are the same type; unknown ones have 2."""
    return _ELEMENT_BYTES.get(dtype.removeprefix("DT_"), 2)


@lru_cache(maxsize=1 << 14)
def parse_tensors(shapes: str, dtypes: str, formats: str) -> tuple[Tensor, ...]:
    """Operands from the three columns: ``"32,3;64"``, ``FLOAT;FLOAT`` and ``ND;ND``.

    Shapes may carry quotes of their own; an absent operand is an empty part.

    Raises:
        ValueError: a dimension is no whole number, or no die could hold the shape.
    """
    bare = shapes.strip().strip('"')
    if len(bare) > _LONGEST_TEXT:
        raise ValueError("a shape list too long to be one")
    if not bare:
        return ()
    types, layouts = dtypes.split(";"), formats.split(";")
    tensors = []
    for number, part in enumerate(bare.split(";")):
        dtype = types[number].strip() if number < len(types) else ""
        layout = layouts[number].strip() if number < len(layouts) else ""
        tensors.append(Tensor(_shape(part.strip()), dtype, layout))
    return tuple(tensors)


def _shape(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MOST_DIMENSIONS or not all(
        part.isascii() and part.isdigit() and len(part) <= 15 for part in parts
    ):
        raise ValueError("a shape that is no list of whole numbers")
    shape = tuple(int(part) for part in parts)
    if Tensor(shape).elements > MOST_ELEMENTS:
        raise ValueError("a shape that no die could hold")
    return shape
