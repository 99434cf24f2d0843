"""The README's accuracy table and its errors are what the command prints."""

from __future__ import annotations

import statistics
from pathlib import Path

from calibration.comparison import compare_steps, is_end_to_end
from calibration.measurement import shipped_measurements
from hardware_models.hardware import load_hardware
from twin.uncertainty import draw_hardware

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def test_accuracy_is_reproduced() -> None:
    hardware = load_hardware("a3-752t")
    found = compare_steps(shipped_measurements(), hardware, draw_hardware(hardware)).comparisons
    for one in found:
        assert one.simulated_us is not None
        assert one.error is not None
        line = (
            f"| {one.row.row} | {one.row.measured_us:g} | {one.simulated_us:.1f} | "
            f"{one.low_us:.1f} .. {one.high_us:.1f} | {one.error:+.1%} |"
        )
        assert line in README.splitlines()
    whole, ops = (
        statistics.fmean(abs(one.error or 0.0) for one in found if is_end_to_end(one) == is_whole)
        for is_whole in (True, False)
    )
    assert f"Op rows: mean absolute error {ops:.1%}; end to end: {whole:.1%}." in README
