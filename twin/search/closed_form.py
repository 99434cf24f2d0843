"""The closed-form A:F rule: how many attention dies one FFN die should serve.

Source: arXiv 2601.21351.  With r attention dies of B sequences each per FFN die, a layer takes
the longest of attention (t_A, set by the KV length), the transfers (t_C = a_C r B + b_C) and
the FFN die (t_F = a_F r B + b_F), so that a die of the r + 1 gets

    r B / ((r + 1) max(t_A, t_C, t_F))

sequences a layer time done.  Below the r at which transfers or FFN catch up with attention more
attention dies are better; where one of those two binds, r / ((r + 1)(a r B + b)) is largest at
r = sqrt(b / (a B)).  The best r is one of these points, or the one where the two meet.

The rule takes the three to overlap without a gap and the experts of an FFN die to be the same
for every r.  A search does neither, which is why this is a baseline and no answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.deployment import Role, RoleDeployment
from twin.evaluate import Evaluation, evaluate
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

SOURCE = "arXiv 2601.21351"


@dataclass(frozen=True, slots=True)
class LinearTime:
    """A time in us of ``sequences`` on all attention dies together: slope x sequences + fixed."""

    slope_us: float
    fixed_us: float

    def us(self, sequences: float) -> float:
        """The time of so many sequences."""
        return self.slope_us * sequences + self.fixed_us


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """What the rule needs: a layer's times on an attention die, in the transfers, on an FFN die.

    ``batch`` is the sequences of one attention die.
    """

    batch: float
    attention_us: float
    transfer: LinearTime
    ffn: LinearTime

    def layer_us(self, ratio: float) -> float:
        """The longest of the three where one FFN die serves ``ratio`` attention dies."""
        sequences = ratio * self.batch
        return max(self.attention_us, self.transfer.us(sequences), self.ffn.us(sequences))

    def throughput(self, ratio: float) -> float:
        """Sequences a die and us of layer time."""
        return ratio * self.batch / ((ratio + 1) * self.layer_us(ratio))


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The rule's answer: the best real ratio, the best of those offered, and why."""

    ratio: float
    chosen: int
    reasoning: str
    times: LayerTimes


def closed_form(times: LayerTimes, ratios: Sequence[int]) -> ClosedForm:
    """The A:F ratio of the rule; ``ratios`` are those that can be built.

    The real ratio is infinite where nothing grows with it: attention dies then cost nothing.

    Raises:
        InputError: a time or the batch is out of range, or no ratio is offered.
    """
    _check(times, ratios)
    chosen = max(ratios, key=lambda ratio: (times.throughput(ratio), -ratio))
    points = _points(times)
    if not points:
        ratio, why = math.inf, "nothing grows with the ratio, so attention dies are free"
    else:
        ratio, why = max(points, key=lambda point: times.throughput(point[0]))
        sequences = ratio * times.batch
        why += (
            f": attention {times.attention_us:.1f}, transfers "
            f"{times.transfer.us(sequences):.1f}, FFN {times.ffn.us(sequences):.1f} us a layer"
        )
    reasoning = f"A:F {ratio:.2f}:1, where {why}; of the ratios offered {chosen}:1 ({SOURCE})"
    return ClosedForm(ratio, chosen, reasoning, times)


def _check(times: LayerTimes, ratios: Sequence[int]) -> None:
    for name, value in (("batch", times.batch), ("attention_us", times.attention_us)):
        if not 0 < value < math.inf:
            raise InputError(name, value, "a number above 0")
    for name, side in (("transfer", times.transfer), ("ffn", times.ffn)):
        for part, value in (("slope_us", side.slope_us), ("fixed_us", side.fixed_us)):
            if not 0 <= value < math.inf:
                raise InputError(f"{name}.{part}", value, "a number from 0")
    if not ratios or min(ratios) < 1:
        raise InputError("ratios", list(ratios), "whole numbers from 1, at least one")


def _points(times: LayerTimes) -> list[tuple[float, str]]:
    """Every ratio at which the throughput can be largest, with what happens there.

    The throughput is the least of three curves that rise to one top each, so its top is the
    top of one of them or a crossing of two.
    """
    sides = (
        (times.ffn, "the FFN catches up with attention", "the FFN binds"),
        (times.transfer, "the transfers catch up with attention", "the transfers bind"),
    )
    found: list[tuple[float, str]] = []
    for side, meets, binds in sides:
        grows = side.slope_us * times.batch
        if grows > 0:
            found.append(((times.attention_us - side.fixed_us) / grows, meets))
            peak = math.sqrt(side.fixed_us / grows)
            found.append((peak, f"{binds} and more attention dies no longer pay"))
    slope = (times.ffn.slope_us - times.transfer.slope_us) * times.batch
    if slope != 0:
        crossing = (times.transfer.fixed_us - times.ffn.fixed_us) / slope
        found.append((crossing, "the transfers take as long as the FFN"))
    return [(ratio, why) for ratio, why in found if ratio > 0]


def layer_times(schedule: Schedule, model: ModelSpec, hardware: Hardware) -> LayerTimes:
    """The rule's times for an AFD schedule, from two simulated steps.

    Each FFN die keeps its experts and serves one, then two attention dies of the schedule's
    batch; a line through both gives slopes and fixed parts.

    Raises:
        InputError: the schedule is not AFD, or asks for something that is not simulated.
    """
    if not schedule.deployment.is_afd:
        raise InputError("deployment.roles", sorted(schedule.deployment.roles), "attention and ffn")
    role = schedule.deployment.attention
    batch = schedule.workload.global_batch / role.dies
    one, two = (_layer(schedule, model, hardware, batch, ratio) for ratio in (1, 2))
    return LayerTimes(
        batch=batch,
        attention_us=one.attention_us,
        transfer=_line(one.transfer_us, two.transfer_us, batch),
        ffn=_line(one.ffn_us, two.ffn_us, batch),
    )


def _line(one_us: float, two_us: float, batch: float) -> LinearTime:
    """The line through the times of one and of two attention dies; it never falls."""
    slope = min(max(0.0, two_us - one_us), one_us)
    return LinearTime(slope / batch, one_us - slope)


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_us: float
    transfer_us: float
    ffn_us: float


def _layer(
    schedule: Schedule, model: ModelSpec, hardware: Hardware, batch: float, ratio: int
) -> _Layer:
    """Busy times of a middle layer with ``ratio`` attention dies of ``batch`` for each FFN die."""
    deployment = schedule.deployment
    ffn, attention = deployment.roles["ffn"], deployment.roles["attention"]
    dies = ratio * ffn.dies
    roles: dict[Role, RoleDeployment] = {"attention": replace(attention, dies=dies), "ffn": ffn}
    afd = None if deployment.afd is None else replace(deployment.afd, micro_batches=1)
    scaled = replace(
        schedule,
        deployment=replace(deployment, roles=roles, afd=afd),
        workload=replace(schedule.workload, global_batch=math.ceil(batch * dies)),
    )
    return _busy(evaluate(scaled, model, hardware), f"layer.{model.num_layers // 2}.", ratio)


def _busy(evaluation: Evaluation, layer: str, ffn_die: int) -> _Layer:
    graph, timeline = evaluation.graph, evaluation.timeline
    main = {0: 0.0, ffn_die: 0.0}
    spans: dict[tuple[bool, bool], tuple[float, float]] = {}
    for op in graph.ops:
        if not op.name.startswith(layer):
            continue
        record = timeline.records[op.index]
        if op.stream == "main" and op.die in main:
            main[op.die] += record.end_us - record.start_us
        elif op.stream.startswith("link"):
            # All transfers of one side and way run together: from the first to the last.
            way = (op.die == ffn_die, ".send" in op.name)
            first, last = spans.get(way, (record.start_us, record.end_us))
            spans[way] = (min(first, record.start_us), max(last, record.end_us))
    transfer_us = sum(last - first for first, last in spans.values())
    return _Layer(main[0], transfer_us, main[ffn_die])
