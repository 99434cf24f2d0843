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
    "LN": ("norm", "input_norm"),
    "AG": ("collective", "all_gather"),
    "RS": ("collective", "reduce_scatter"),
    "A2A": ("collective", "all_to_all"),
    "DynamicQuant": ("dynamic_quant", "quant"),
    "DSQ": ("dequant_swiglu_quant", "swiglu"),
    "DequantSwigluQuant": ("dequant_swiglu_quant", "swiglu"),
}

# Fewer cores than the die has are one half beside the MoE stream, all of them the attention
# side of AFD.
_HALF = ("recipe_colocated_c12v24", False, 512)
_WHOLE = ("recipe_afd", True, 256)
_HALF_CORES, _ALL_CORES = (12, 24), (24, 48)

_MODEL = "LongCat-Flash"
_QUANTISATIONS = {"w8a8": "w8a8", "bf16": "bf16"}


def read_cores(lines: Sequence[Line], path: str) -> list[Measurement]:
    """Rows of the core-split table, in the published decode setting.

    Raises:
        InputError: more cores than the die has, or a value that is wrong.
    """
    return [_cores_row(line, path) for line in lines]


def _cores_row(line: Line, path: str) -> Measurement:
    cores = (line.integer("cube_cores"), line.integer("vector_cores"))
    for column, count, most in zip(("cube_cores", "vector_cores"), cores, _ALL_CORES, strict=True):
        if count > most:
            raise line.fault(column, f"at most {most}, the cores of the die")
    name = line.text("op")
    kind, op = _OPS.get(name, (name, name))
    schedule, afd, batch = _WHOLE if cores == _ALL_CORES else _HALF
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
        cores=None if cores in (_HALF_CORES, _ALL_CORES) else cores,
        reason="" if name in _OPS else f"no op {name} among those of the main stream",
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
    model = line.fields.get("model", _MODEL)
    quantisation = line.fields.get("quant", "W8A8").lower()
    reason = ""
    if not model.startswith(_MODEL) or "Lite" in model:
        reason = f"model {model}: only {_MODEL} has published steps"
    elif quantisation not in _QUANTISATIONS:
        reason = f"quantisation {quantisation}: no model of it"
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
        quantisation=_QUANTISATIONS.get(quantisation, quantisation),
        reason=reason,
    )
