"""Findings: three thresholds of tuning practice, each with advice that the twin puts to the test.

Source of the thresholds and of what they mean: the articles that this project began from (L2
hit rate under 70%: tile or data movement; cube utilisation under 50%: tiles too small;
communication over 20% of the time: overlap does not work).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from calibration.profiles.diagnosis import Diagnosis
from calibration.profiles.mapping import Mapped
from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops import BatchMatMul, GroupedMatMul, MatMul, QuantMatMul
from hardware_models.ops.alone import alone_us
from twin.evaluate import evaluate
from twin.model_spec import ModelSpec
from twin.schedule import Schedule
from twin.search.feasible import rejection

L2_HIT_RATE = 0.70
CUBE_UTILISATION = 0.50
COMMUNICATION_SHARE = 0.20

State = Literal["reached", "missed", "not recorded"]

_MICRO_BATCHES = (1, 2, 3, 4)
_PRODUCTS = (BatchMatMul, GroupedMatMul, MatMul, QuantMatMul)
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that the twin tried: times in us before and after, or why it cannot be."""

    what: str
    before_us: float
    after_us: float | None
    refused: str = ""

    @property
    def change(self) -> float | None:
        """Relative change of the time; negative is faster."""
        if self.after_us is None or not self.before_us:
            return None
        return self.after_us / self.before_us - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One threshold: the value found (None: not recorded), advice, and what the twin says."""

    name: str
    value: float | None
    threshold: float
    state: State
    advice: str
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """The schedule that was profiled, where the user names it."""

    schedule: Schedule
    model: ModelSpec


def findings(found: Diagnosis, hardware: Hardware, planned: Planned | None) -> tuple[Finding, ...]:
    """The three findings of a profile, in the order of the module's first lines."""
    products = [row for row in found.longest if isinstance(row.spec, _PRODUCTS)]
    return (
        _l2(found, products, hardware),
        _cube(found, products, hardware),
        _communication(found, hardware, planned),
    )


def _l2(found: Diagnosis, products: Sequence[Mapped], hardware: Hardware) -> Finding:
    sums = [kind.counters.get("l2_hit_rate", (0.0, 0.0)) for kind in found.kinds.values()]
    weight = sum(weight for _, weight in sums)
    value = sum(total for total, _ in sums) / weight if weight else None
    advice = (
        "The tile or the movement of data does not fit L2: prefetch the weights of the longest "
        "products, or choose tiles whose operands stay."
    )
    state = _state(value, value is not None and value < L2_HIT_RATE)
    trials = []
    if state == "missed":
        for row in _distinct(products):
            assert row.spec is not None
            before = alone_us(row.spec, hardware)
            after = alone_us(row.spec, hardware, resident=True)
            trials.append(Trial(f"{_title(row)} with its weight in L2", before, after))
    return Finding("L2 hit rate", value, L2_HIT_RATE, state, advice, tuple(trials))


def _cube(found: Diagnosis, products: Sequence[Mapped], hardware: Hardware) -> Finding:
    rated = [
        (kind.cube_utilisation, kind.total_us)
        for kind in found.kinds.values()
        if kind.cube_utilisation is not None
    ]
    weight = sum(time for _, time in rated)
    value = sum((share or 0.0) * time for share, time in rated) / weight if weight else None
    advice = (
        "Tiles are too small for the cube: batch more rows into one product (merge micro-batches, "
        "more sequences a die, more tokens an expert)."
    )
    state = _state(value, value is not None and value < CUBE_UTILISATION)
    trials = []
    if state == "missed":
        for row in _distinct(products):
            twice = _twice_the_rows(row.spec)
            if twice is not None and row.spec is not None:
                before, after = 2 * alone_us(row.spec, hardware), alone_us(twice, hardware)
                trials.append(Trial(f"{_title(row)}: two launches as one", before, after))
    return Finding("cube utilisation", value, CUBE_UTILISATION, state, advice, tuple(trials))


def _twice_the_rows(spec: OpSpec | None) -> OpSpec | None:
    if isinstance(spec, GroupedMatMul):
        groups = tuple(2 * size for size in spec.groups)
        return replace(spec, rows=2 * spec.rows, groups=groups)
    if isinstance(spec, MatMul | QuantMatMul | BatchMatMul):
        return replace(spec, m=2 * spec.m)
    return None


def _communication(found: Diagnosis, hardware: Hardware, planned: Planned | None) -> Finding:
    value = found.share(lambda step: step.communication_us) if found.steps else None
    advice = (
        "Overlap does not work: change the slice (micro-batches, group sizes), or put the "
        "communication beside computing."
    )
    state = _state(value, value is not None and value > COMMUNICATION_SHARE)
    trials: list[Trial] = []
    if state == "missed":
        step_us = found.mean_step_us
        exposed = found.share(lambda step: step.exposed_us)
        hidden = Trial(
            "all exposed communication hidden (a bound)", step_us, step_us * (1 - exposed)
        )
        trials = [hidden, *(_slices(planned, hardware) if planned else [])]
    return Finding("communication share", value, COMMUNICATION_SHARE, state, advice, tuple(trials))


def _slices(planned: Planned, hardware: Hardware) -> list[Trial]:
    """The planned schedule with other slices, simulated."""
    schedule = planned.schedule
    before = evaluate(schedule, planned.model, hardware).step_us
    trials = []
    for what, variant in _variants(schedule):
        refused = rejection(variant, planned.model, hardware)
        if refused is not None:
            trials.append(Trial(what, before, None, refused.detail))
        else:
            after = evaluate(variant, planned.model, hardware).step_us
            trials.append(Trial(what, before, after))
    return trials


def _variants(schedule: Schedule) -> list[tuple[str, Schedule]]:
    deployment = schedule.deployment
    if deployment.afd is not None:
        now = deployment.afd.micro_batches
        counts = [count for count in _MICRO_BATCHES if count != now]
        afd = [replace(deployment.afd, micro_batches=count) for count in counts]
        return [
            (f"micro_batches {now} -> {x.micro_batches}",
             replace(schedule, deployment=replace(deployment, afd=x)))
            for x in afd
        ]  # fmt: skip
    role = deployment.attention
    found = []
    for name in ("o_proj_tp", "dense_tp", "lm_head_tp"):
        size = getattr(role, name)
        if size > 1:
            smaller = replace(role, **{name: size // 2})
            roles = {**deployment.roles, deployment.attention_role: smaller}
            variant = replace(schedule, deployment=replace(deployment, roles=roles))
            found.append((f"{name} {size} -> {size // 2}", variant))
    return found


def _state(value: float | None, missed: bool) -> State:
    if value is None:
        return "not recorded"
    return "missed" if missed else "reached"


def _distinct(rows: Sequence[Mapped]) -> list[Mapped]:
    """The longest rows, each spec once."""
    seen = {row.spec: row for row in reversed(rows)}
    return sorted(seen.values(), key=lambda row: -row.kernel.duration_us)[:_SHOWN]


def _title(row: Mapped) -> str:
    shapes = ";".join(",".join(map(str, tensor.shape)) for tensor in row.kernel.inputs[:2])
    return f"{row.kind} {shapes}"
