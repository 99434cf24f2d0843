"""The README's accuracy table is what the command prints."""

from __future__ import annotations

from pathlib import Path

from calibration.measurement import shipped_measurements
from calibration.predict import predict, setting_of
from hardware_models.hardware import load_hardware

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def test_every_row_of_the_accuracy_table_is_reproduced() -> None:
    rows = shipped_measurements()
    shown = {
        cells[0]: cells[1:]
        for line in README.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
    }
    simulated = predict(rows, [setting_of(row) for row in rows], load_hardware("a3-752t"))
    for row, value in zip(rows, simulated, strict=True):
        measured, printed, interval, error = shown[row.row]
        assert measured == f"{row.measured_us:g}"
        assert printed == f"{value:.1f}"
        assert error == f"{value / row.measured_us - 1:+.1%}"
        low, _, high = interval.partition(" .. ")
        assert float(low) <= float(printed) <= float(high)
