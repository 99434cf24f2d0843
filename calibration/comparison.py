"""One row beside what the twin says: value, interval, evidence, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibration.kernel import KernelRow, spec_text
from calibration.measurement import END_TO_END, Measurement, shipped_measurements
from calibration.predict import Setting, check_op, predict, setting_of
from calibration.tables import Row
from calibration.tables.own import shipped_kernels
from hardware_models.errors import TwinError
from hardware_models.hardware import Hardware
from hardware_models.parameter import Evidence
from hardware_models.shapes import is_inside
from twin.evaluate import interval_around
from twin.evidence import evidence_of, extrapolated_kinds
from twin.graph.build import build_step_graph
from twin.uncertainty import COVERAGE

RowEvidence = Evidence | Literal["extrapolated", "none"]

# Half the log width of a kind's 80% interval where no rows of it were ever fitted.
_UNKNOWN_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row: measured, simulated, the 80% interval of the simulation, the evidence.

    ``evidence`` is "fitted" where the parameters were fitted to this very row, "extrapolated"
    where its shape lies outside of what was fitted.  A row without a model has a ``reason``.
    """

    row: Row
    simulated_us: float | None
    low_us: float | None
    high_us: float | None
    evidence: RowEvidence
    reason: str = ""

    @property
    def modelled(self) -> bool:
        """Whether the twin says anything for this row."""
        return self.simulated_us is not None

    @property
    def error(self) -> float | None:
        """Simulated over measured, less one."""
        return self.simulated_us / self.row.measured_us - 1 if self.simulated_us else None

    @property
    def has_interval(self) -> bool:
        """Whether the row has an interval of its own (without draws, a step row has none)."""
        return self.low_us is not None and self.high_us is not None and self.low_us < self.high_us

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measurement."""
        if self.low_us is None or self.high_us is None:
            return False
        return self.low_us <= self.row.measured_us <= self.high_us

    def payload(self) -> dict[str, object]:
        """As result.json holds it."""
        return {
            "source_row": self.row.row,
            "kind": self.row.kind,
            "setting": self.row.setting,
            "measured_us": self.row.measured_us,
            "simulated_us": self.simulated_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "error": self.error,
            "evidence": self.evidence,
            "status": "modelled" if self.modelled else "unsupported",
            "reason": self.reason,
            "source": self.row.source,
        }


def compare_kernels(
    rows: Sequence[KernelRow], die_of: Callable[[str], Hardware]
) -> list[Comparison]:
    """Kernel rows: the ops alone on their die; intervals from left-out rows of their kind."""
    fitted = {_key(row) for row in shipped_kernels()}
    comparisons = []
    for row in rows:
        if not row.specs:
            comparisons.append(Comparison(row, None, None, None, "none", row.reason))
            continue
        die = die_of(row.hardware)
        value = row.predicted_us(die)
        spread = die.parameters.get(f"spread_{row.kind}")
        factor = math.exp(spread.value if spread else _UNKNOWN_SPREAD)
        evidence: RowEvidence = "interpolated"
        if _key(row) in fitted:
            evidence = "fitted"
        elif not all(is_inside(spec, die.fitted_shapes) for spec in row.specs):
            evidence = "extrapolated"
        comparisons.append(Comparison(row, value, value / factor, value * factor, evidence))
    return comparisons


def _key(row: KernelRow) -> tuple[str, str, str]:
    return row.hardware, row.place, spec_text(row.specs)


@dataclass(frozen=True, slots=True)
class Steps:
    """Step rows that can be run, with their settings, and the comparisons of all of them."""

    settings: tuple[Setting, ...]
    comparisons: tuple[Comparison, ...]


def compare_steps(
    rows: Sequence[Measurement], hardware: Hardware, variants: Sequence[Hardware]
) -> Steps:
    """Simulate every row's step, and again for each variant of the parameters."""
    runnable: list[Measurement] = []
    settings: list[Setting] = []
    refused: dict[str, str] = {}
    for row in rows:
        try:
            setting = setting_of(row)
            if row.kind != END_TO_END:
                check_op(row, setting, hardware)
        except TwinError as error:
            refused[row.row] = row.reason or str(error)
        else:
            settings.append(setting)
            runnable.append(row)
    simulated = predict(runnable, settings, hardware)
    low, high = _interval(runnable, settings, simulated, hardware, variants)
    answers = {
        row.row: Comparison(row, value, low[i], high[i], _step_evidence(row, settings[i], hardware))
        for i, (row, value) in enumerate(zip(runnable, simulated, strict=True))
    }
    return Steps(
        tuple(settings),
        tuple(
            answers.get(row.row)
            or Comparison(row, None, None, None, "none", refused.get(row.row, ""))
            for row in rows
        ),
    )


def _interval(
    rows: Sequence[Measurement],
    settings: Sequence[Setting],
    simulated: Sequence[float],
    hardware: Hardware,
    variants: Sequence[Hardware],
) -> tuple[list[float], list[float]]:
    if not variants or not rows:
        return list(simulated), list(simulated)
    drawn = np.array([predict(rows, settings, variant) for variant in variants])
    tail = (1 - COVERAGE) / 2
    lows, highs = np.quantile(drawn, [tail, 1 - tail], axis=0).tolist()
    ends = [
        interval_around(
            simulated[i],
            lows[i],
            highs[i],
            hardware["spread_step_tpot" if row.kind == END_TO_END else "spread_step_op"],
        )
        for i, row in enumerate(rows)
    ]
    return [low for low, _ in ends], [high for _, high in ends]


def _step_evidence(row: Measurement, setting: Setting, hardware: Hardware) -> RowEvidence:
    """Fitted to this very setting, else told by the shapes of the step's ops."""
    known = [other for other in shipped_measurements() if other.op == row.op]
    if any((other.setting, other.afd) == (row.setting, row.afd) for other in known):
        return "fitted"
    graph = build_step_graph(setting.schedule, setting.model, hardware, layers=2)
    if extrapolated_kinds((op.spec for op in graph.ops), hardware):
        return "extrapolated"
    return evidence_of(setting.schedule, setting.model, hardware)


def is_end_to_end(comparison: Comparison) -> bool:
    """Whether the row is a step's time rather than an op's."""
    return comparison.row.kind == END_TO_END
