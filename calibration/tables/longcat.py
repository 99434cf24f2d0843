"""LongCat-Flash decode as published: op latencies by core counts, and end-to-end rows."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.measurement import END_TO_END, Measurement
from calibration.reading import Line
from hardware_models.errors import InputError

CORES_COLUMNS = ("cube_cores", "vector_cores", "op", "duration_us", "source")
END_TO_END_COLUMNS = ("global_batch", "seq_len", "chips", "next_n", "afd", "tpot_ms", "source")

_DIE = "a3-752t"
_DIES_PER_CHIP = 2
_OPS = {
    "MLAProlog": ("mla_prolog", "prolog"),
    "FA": ("mla_attention", "attention"),
    "MM": ("matmul", "o_proj"),
    "TBMM": ("batch_matmul", "uv"),
    "QBMM1": ("quant_matmul", "gate_up"),
    "QBMM2": ("quant_matmul", "down"),
}

# What ran with so many (cube, vector) cores: two equal halves beside the MoE stream, or the
# attention side of AFD with the whole die.
_SCHEDULES = {
    (12, 24): ("recipe_colocated_c12v24", False, 512),
    (24, 48): ("recipe_afd", True, 256),
}


def read_cores(lines: Sequence[Line], path: str) -> list[Measurement]:
    """Rows of the core-split table, in the published decode setting.

    Raises:
        InputError: an op or a core split that was never published.
    """
    return [_cores_row(line, path) for line in lines]


def _cores_row(line: Line, path: str) -> Measurement:
    cores = (line.integer("cube_cores"), line.integer("vector_cores"))
    if cores not in _SCHEDULES:
        raise line.fault("cube_cores", "12 with 24, or 24 with 48 vector cores")
    if line.text("op") not in _OPS:
        raise line.fault("op", ", ".join(_OPS))
    kind, op = _OPS[line.text("op")]
    schedule, afd, batch = _SCHEDULES[cores]
    return Measurement(
        row=f"{path}:{line.number}",
        kind=kind,
        op=op,
        schedule=schedule,
        afd=afd,
        global_batch=batch,
        kv_tokens=4608,
        dies=128,
        next_n=2,
        measured_us=line.time_us("duration_us"),
        hardware=_DIE,
        cann="not stated",
        source=line.text("source"),
    )


def read_end_to_end(lines: Sequence[Line], path: str) -> list[Measurement]:
    """TPOT rows: dies = 2 x chips, half of them for the MoE where ``afd`` is yes."""
    return [_end_to_end_row(line, path) for line in lines]


def _end_to_end_row(line: Line, path: str) -> Measurement:
    text = line.text("afd")
    if text not in ("yes", "no"):
        raise line.fault("afd", "yes or no")
    next_n = line.text("next_n")
    if next_n not in ("0", "1", "2"):
        raise InputError("next_n", next_n, "0, 1 or 2", line.where)
    return Measurement(
        row=f"{path}:{line.number}",
        kind=END_TO_END,
        op="tpot",
        schedule="recipe_afd" if text == "yes" else "recipe_colocated",
        afd=text == "yes",
        global_batch=line.integer("global_batch"),
        kv_tokens=line.integer("seq_len"),
        dies=_DIES_PER_CHIP * line.integer("chips"),
        next_n=int(next_n),
        measured_us=1e3 * line.number_of("tpot_ms", 0.5, 1000, "ms"),
        hardware=_DIE,
        cann="not stated",
        source=line.text("source"),
    )
