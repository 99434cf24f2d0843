"""Latency as three sides count it: a step, an accepted token, a serving benchmark."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hardware_models.hardware import Hardware
from hardware_models.parameter import Parameter
from twin.evaluate import latencies, latency_of
from twin.graph.shapes import step_shapes
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

# Capture sizes that lie below the first multiple of ``serving_capture_rows``.
_SMALL_CAPTURES = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLines:
    """One schedule's latency in us by who counts it.

    ``step_us``: one step, MTP passes included.  ``accepted_us``: per accepted token (TPOT); in
    prefill, whose step is the TTFT, the same.  ``served_us``: as a serving benchmark reports
    either: the step at the batch that the graph was captured for (``padded_sequences`` instead
    of ``sequences`` on an attention group) with the host's gap ``host_gap_us`` behind it, over
    the accepted tokens; ``served_range_us`` lets the gap go through its range.  Waiting for
    admission is in none of them.
    """

    step_us: float
    accepted_us: float
    served_us: float
    served_range_us: tuple[float, float]
    host_gap_us: float
    sequences: int
    padded_sequences: int


def latency_lines(
    schedule: Schedule, model: ModelSpec, hardware: Hardware, step_us: float
) -> LatencyLines:
    """The three lines of a schedule whose step takes ``step_us``.

    Rows that only pad are taken to have the cached tokens of real ones: a little too slow.

    Raises:
        InputError: the die lacks a parameter, or the padded batch is not simulated.
        DeadlockError: the padded step cannot finish.
    """
    workload = schedule.workload
    shapes = step_shapes(schedule, model)
    padded = padded_sequences(schedule, model, hardware)
    accepted_us = latency_of(workload, step_us)
    padded_us = accepted_us
    if padded != shapes.sequences:
        batch = padded * schedule.deployment.attention.attention_groups
        wider = replace(schedule, workload=replace(workload, global_batch=batch))
        (padded_us,) = latencies(wider, model, [hardware])
    gap = host_gap(schedule, hardware)

    def served(gap_us: float) -> float:
        return padded_us + latency_of(workload, gap_us)

    return LatencyLines(
        step_us=step_us,
        accepted_us=accepted_us,
        served_us=served(gap.value),
        served_range_us=(served(gap.low), served(gap.high)),
        host_gap_us=gap.value,
        sequences=shapes.sequences,
        padded_sequences=padded,
    )


def host_gap(schedule: Schedule, hardware: Hardware) -> Parameter:
    """Time between two steps in which the die waits for the host, in us.

    In eager mode no graph is launched: the host only reads the tokens of the last step.

    Raises:
        InputError: the die lacks the parameter.
    """
    is_eager = schedule.deployment.graph_mode == "eager"
    return hardware.parameter("host_read_us" if is_eager else "serving_host_gap_us")


def padded_sequences(schedule: Schedule, model: ModelSpec, hardware: Hardware) -> int:
    """Sequences of an attention group that the captured graph next in size has room for.

    Graphs are captured for 1, 2, 4 and then multiples of ``serving_capture_rows`` token rows.
    Eager steps and prefill, which is eager, are not padded.
    """
    sequences = step_shapes(schedule, model).sequences
    if schedule.deployment.graph_mode == "eager" or schedule.workload.is_prefill:
        return sequences
    rows, every = sequences * schedule.workload.rows_per_sequence, hardware["serving_capture_rows"]
    multiple = int(math.ceil(rows / every) * every)
    small = [size for size in _SMALL_CAPTURES if rows <= size < every]
    return math.ceil(min([*small, multiple]) / schedule.workload.rows_per_sequence)
