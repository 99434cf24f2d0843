"""The lowered ops as lines to read."""

from __future__ import annotations

from collections.abc import Sequence

from runtime_npu.lower.lowered import LoweredOp

TITLE = "lowered, not executed"
HEADINGS = ("op", "stream", "cores", "scope", "becomes")


def listing(lowered: Sequence[LoweredOp]) -> list[str]:
    """A title, headings and a line an op; waits, groups, bytes and shapes stand at its end.

    ``(+ Transpose)`` brings the op's result to the next one, and is in no step graph.
    """
    rows = [HEADINGS, *(_columns(op) for op in lowered)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    notes = ["", *(_notes(op) for op in lowered)]
    lines = [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), note))
        for row, note in zip(rows, notes, strict=True)
    ]
    return [TITLE, *(line.rstrip() for line in lines)]


def outside_and_first(lowered: Sequence[LoweredOp]) -> list[LoweredOp]:
    """The ops of layer 0 and those outside the layers; other layers are alike."""
    return [op for op in lowered if not op.name.startswith("layer.") or op.name[6:8] == "0."]


def _columns(op: LoweredOp) -> tuple[str, str, str, str, str]:
    cores = "all" if op.aic is None else f"c{op.aic}v{op.aiv}"
    if op.prefetch_bytes:
        cores = "none"
    glue = [f"(+ {call})" for call in op.glue]
    return op.name, op.stream, cores, op.scope or "-", ", ".join((*op.calls, *glue))


def _notes(op: LoweredOp) -> str:
    notes = [f"{op.prefetch_bytes} B"] if op.prefetch_bytes else []
    notes += [op.group] if op.group else []
    notes += [" x ".join(map(str, op.shape))] if op.shape else []
    notes += [f"waits for {' and '.join(op.waits)}"] if op.waits else []
    return "; ".join(notes)
