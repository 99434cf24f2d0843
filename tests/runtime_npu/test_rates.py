"""Times of a run: steps, accepted tokens and the passes alone are told apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime_npu.execute import RunResult
from runtime_npu.summary import rates


def result(forward_s: tuple[float, ...]) -> RunResult:
    report: Any = SimpleNamespace(
        prefill_s=0.5,
        step_s=(0.012, 0.010, 0.014),
        forward_s=forward_s,
        # Two sequences, two drafts each: 1.5, 1 and 3 tokens a step.
        accepted=((1, 0), (0, 0), (2, 2)),
    )
    return cast("RunResult", SimpleNamespace(reports=(report,)))


def test_the_passes_alone_are_shorter_than_their_step() -> None:
    times = rates(result((0.009, 0.008, 0.010)))
    assert times["ttft_ms"] == pytest.approx(500)
    assert times["step_ms"] == pytest.approx(12)
    assert times["forward_ms"] == pytest.approx(9)
    assert times["tpot_ms"] == pytest.approx(36 / 5.5)
    assert times["forward_tpot_ms"] == pytest.approx(27 / 5.5)
    assert times["forward_tpot_ms_p50"] == pytest.approx(6)
    assert times["forward_ms_p99"] == pytest.approx(10, abs=0.05)


def test_a_cpu_measures_no_passes() -> None:
    assert not [name for name in rates(result(())) if "forward" in name]
