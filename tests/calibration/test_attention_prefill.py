"""Published prefill attention kernels, none of them fitted: how far off the model is."""

from __future__ import annotations

from importlib import resources

from calibration.kernel import KernelRow
from calibration.reading import parse_table
from calibration.tables.own import SHIPPED, read
from hardware_models.hardware import load_hardware

FILE = "attention_prefill.csv"


def rows() -> list[KernelRow]:
    text = (resources.files("calibration") / "measurements" / FILE).read_text("utf-8")
    _, lines = parse_table(text, FILE)
    return read(lines, FILE)


def errors(shortest: int, longest: int = 1 << 20) -> list[float]:
    found = []
    for row in rows():
        tokens = int(row.row.rpartition(".")[2])
        if shortest <= tokens <= longest:
            predicted_us = row.predicted_us(load_hardware(row.hardware))
            found.append(predicted_us / row.measured_us - 1)
    return found


def test_no_row_was_fitted() -> None:
    assert FILE not in SHIPPED
    assert len(rows()) == 14


def test_long_prompts_are_within_a_quarter_and_short_ones_within_half() -> None:
    assert max(map(abs, errors(16384))) < 0.25
    assert max(map(abs, errors(0))) < 0.55


def test_short_single_heads_are_underestimated() -> None:
    # The published times of short calls include what the host and the launch take.
    assert all(error < 0 for error in errors(0, 8192))
