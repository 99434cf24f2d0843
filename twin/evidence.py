"""What a prediction rests on: the evidence of the parameters that move it, and its shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware
from hardware_models.parameter import EVIDENCE_FROM_WEAKEST, Evidence, Parameter
from hardware_models.shapes import is_inside, kind_of
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.evaluate import Evaluation, latencies
from twin.graph.build import build_step_graph
from twin.graph.step_graph import StepGraph
from twin.model_spec import ModelSpec
from twin.schedule import Schedule

SHARE = 0.01
"""A parameter counts where its range moves the latency by more than this share of it."""

# The shapes of a step's ops show in its first layers.
_LAYERS = 2

# What moves bytes at a rate or adds a constant, with no shape that a fit could have seen.
_SHAPELESS = ("prefetch", "send", "receive")


@dataclass(frozen=True)
class _Recorder(Hardware):
    """A die that notes which of its parameters were asked for."""

    read: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> float:
        self.read.add(name)
        return super().__getitem__(name)


def evidence_of(
    schedule: Schedule,
    model: ModelSpec,
    hardware: Hardware,
    options: EngineOptions = DEFAULT_OPTIONS,
) -> Evidence:
    """The weakest evidence among the parameters that move the latency.

    A parameter counts where going through its range, all others at their values, moves the
    latency by more than :data:`SHARE`.  Where none does, the strongest of those that are read.

    Raises:
        InputError: the schedule asks for something that is not simulated.
        DeadlockError: the schedule cannot finish.
    """
    read = parameters_read(schedule, model, hardware)
    base = latencies(schedule, model, [hardware], options)[0]

    def moves(parameter: Parameter) -> bool:
        ends = [end for end in (parameter.low, parameter.high) if end != parameter.value]
        variants = [hardware.with_values({parameter.name: end}) for end in ends]
        found = [base, *(latencies(schedule, model, variants, options) if variants else [])]
        return max(found) - min(found) > SHARE * base

    for evidence in EVIDENCE_FROM_WEAKEST:
        if any(moves(p) for p in read if p.evidence == evidence):
            return evidence
    return max((p.evidence for p in read), key=EVIDENCE_FROM_WEAKEST.index)


def parameters_read(schedule: Schedule, model: ModelSpec, hardware: Hardware) -> list[Parameter]:
    """The die's parameters that a step asks for, in the die's order.

    Raises:
        InputError: the schedule asks for something that is not simulated.
    """
    recorder = _recorder(hardware)
    build_step_graph(schedule, model, recorder, layers=_LAYERS)
    # The engine reads the die's own rates when it runs, from the graph.
    return [p for p in hardware if p.name in recorder.read or p.name in _ENGINE_READS]


def kinds_that_read(graph: StepGraph, hardware: Hardware) -> dict[str, tuple[str, ...]]:
    """For each parameter that ops ask for, the kinds of op that do."""
    kinds: dict[str, set[str]] = {}
    for spec, cores in {(op.spec, op.cores): None for op in graph.ops}:
        recorder = _recorder(hardware)
        spec.demand(recorder, cores)
        for name in recorder.read:
            kinds.setdefault(name, set()).add(kind_of(spec))
    return {name: tuple(sorted(found)) for name, found in sorted(kinds.items())}


def _recorder(hardware: Hardware) -> _Recorder:
    return _Recorder(
        hardware.name, hardware.parameters, hardware.correlations, hardware.fitted_shapes
    )


_ENGINE_READS = ("hbm_read_gbps", "l2_gbps", "l2_usable_bytes", "l2_pollution", "sdma_gbps",
                 "link_gbps")  # fmt: skip


def extrapolated_kinds(specs: Iterable[OpSpec], hardware: Hardware) -> tuple[str, ...]:
    """Kinds of op with a shape outside of what their parameters were fitted to.

    Where the parameter file names no fitted shapes, nothing can be said and nothing is listed.
    """
    if not hardware.fitted_shapes:
        return ()
    seen = {spec: None for spec in specs if spec.kind not in _SHAPELESS}
    return tuple(
        sorted({kind_of(spec) for spec in seen if not is_inside(spec, hardware.fitted_shapes)})
    )


def with_evidence(
    evaluation: Evaluation,
    model: ModelSpec,
    hardware: Hardware,
    options: EngineOptions = DEFAULT_OPTIONS,
) -> Evaluation:
    """The same evaluation with the evidence of what moves it, and the kinds extrapolated."""
    specs = (op.spec for op in evaluation.graph.ops)
    return replace(
        evaluation,
        evidence=evidence_of(evaluation.schedule, model, hardware, options),
        extrapolated=extrapolated_kinds(specs, hardware),
    )
