"""Latency lines: capture sizes, the host's gap, and what each line adds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.evaluate import evaluate
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.serving import latency_lines, padded_sequences
from twin.uncertainty import SERVING, draw_hardware

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")
BASE = load_schedule("recipe_colocated")
# vLLM's list, up to 64 rows.
CAPTURES = [1, 2, 4, *range(8, 65, 8)]


def serving(sequences: int, next_n: int) -> Schedule:
    batch = sequences * BASE.deployment.attention.attention_groups
    workload = replace(BASE.workload, global_batch=batch, next_n=next_n, acceptance=0.0)
    return replace(BASE, workload=workload)


@given(sequences=st.integers(1, 21), next_n=st.integers(0, 2))
def test_rows_are_padded_to_the_next_capture_size(sequences: int, next_n: int) -> None:
    rows = sequences * (1 + next_n)
    size = next(size for size in CAPTURES if size >= rows)
    padded = padded_sequences(serving(sequences, next_n), MODEL, HARDWARE)
    assert padded == -(-size // (1 + next_n))


def test_a_user_who_lists_the_batch_pads_nothing() -> None:
    exact = HARDWARE.with_values({"serving_capture_rows": 1})
    for sequences in range(1, 20):
        assert padded_sequences(serving(sequences, 0), MODEL, exact) == sequences


def test_the_served_line_is_the_padded_step_and_the_gap_over_the_accepted_tokens() -> None:
    step_us = evaluate(BASE, MODEL, HARDWARE).step_us
    lines = latency_lines(BASE, MODEL, HARDWARE, step_us)
    tokens = 1 + BASE.workload.acceptance
    assert lines.step_us == step_us
    assert lines.accepted_us == step_us / tokens
    assert lines.padded_sequences > lines.sequences
    groups = BASE.deployment.attention.attention_groups
    wider = replace(BASE.workload, global_batch=lines.padded_sequences * groups)
    padded_us = evaluate(replace(BASE, workload=wider), MODEL, HARDWARE).step_us
    gap_us = HARDWARE["serving_host_gap_us"]
    assert lines.served_us == pytest.approx((padded_us + gap_us) / tokens)
    low, high = lines.served_range_us
    assert low == pytest.approx(padded_us / tokens)
    assert low < lines.served_us < high


def test_prefill_is_not_padded_and_its_host_only_reads() -> None:
    prefill = load_schedule("recipe_prefill")
    lines = latency_lines(prefill, MODEL, HARDWARE, 1e6)
    assert lines.padded_sequences == lines.sequences
    assert lines.accepted_us == 1e6
    assert lines.served_us == pytest.approx(1e6 + HARDWARE["host_read_us"])


def test_parameters_that_no_step_reads_are_not_drawn() -> None:
    served = [p.name for p in HARDWARE if p.name.startswith(SERVING)]
    assert served
    for drawn in draw_hardware(HARDWARE, 4):
        assert all(drawn[name] == HARDWARE[name] for name in served)


def test_a_die_without_the_gap_is_refused_by_name() -> None:
    kept = {p.name: p for p in HARDWARE if p.name != "serving_host_gap_us"}
    with pytest.raises(InputError, match="serving_host_gap_us"):
        latency_lines(BASE, MODEL, replace(HARDWARE, parameters=kept), 1.0)
