"""Tracing a pass of the run: the model's calls on stand-ins of what lies on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from hardware_models.hardware import Hardware
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_order import CapturedOrder, GeOrder, Order
from runtime_npu.batch import Step
from runtime_npu.kv_cache import KvCache
from runtime_npu.lower.trace import Input, Names, Traced, trace
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.npu.forms import Forms
from runtime_npu.npu.step_inputs import StepInputs, bind_step
from runtime_npu.record import OpRecord
from twin.deployment import GraphMode
from twin.workload import Phase

Run = Callable[[Step | None, torch.Tensor | None], Sequence[torch.Tensor]]
"""The model's calls of a pass, on its step and the hidden states before it, if it has any."""


def main_run(model: LongcatFlash, cache: KvCache) -> Run:
    """The main pass of an attention die: tokens, hidden states and logits."""

    def run(step: Step | None, _: torch.Tensor | None) -> Sequence[torch.Tensor]:
        assert step is not None
        output = model(step, cache)
        return output.tokens, output.hidden, output.logits

    return run


def draft_run(model: LongcatFlash, cache: KvCache, number: int) -> Run:
    """MTP pass ``number``: tokens and hidden states."""

    def run(step: Step | None, hidden: torch.Tensor | None) -> Sequence[torch.Tensor]:
        assert step is not None
        assert hidden is not None
        output = model.draft(number, step, hidden, cache)
        return output.tokens, output.hidden

    return run


def ffn_run(model: FfnDie, phase: Phase, heights: Sequence[int]) -> Run:
    """The pass of an FFN die over rows of these ``heights``; its results leave by its links."""

    def run(*_: object) -> Sequence[torch.Tensor]:
        model(phase, heights)
        return ()

    return run


@dataclass(frozen=True, slots=True)
class PassInputs:
    """What a pass takes, in order: the ``fixed`` weights, the caches, the step's, ``hidden``.

    Then, where they are not on the device, the KV lengths, number by number.
    """

    fixed: Forms
    step: Step | None = None
    inputs: StepInputs | None = None
    hidden: torch.Tensor | None = None


def tracing_mode() -> FakeTensorMode:
    """The mode of a model's traces; its weights must be tensors without data of this mode."""
    return FakeTensorMode(shape_env=ShapeEnv(specialize_zero_one=False, duck_shape=False))


def graph_order(graph_mode: GraphMode, hardware: Hardware) -> Order:
    """The order of one graph's streams."""
    return GeOrder(hardware) if graph_mode == "ge_graph" else CapturedOrder(hardware)


def trace_pass(
    name: str,
    run: Run,
    given: PassInputs,
    backend: NpuBackend,
    hardware: Hardware,
    graph_mode: GraphMode,
    mode: FakeTensorMode,
) -> tuple[Traced, tuple[OpRecord, ...]]:
    """The calls of ``run`` as a graph, and the record of its ops.

    KV lengths that are numbers stay symbols: the graph takes others at every step.
    """
    names = Names()
    order = graph_order(graph_mode, hardware)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            stand_in = torch.empty(tensor.shape, dtype=tensor.dtype, device="npu")
            # What torchair takes for a parameter is never copied and never moves.
            is_weight = isinstance(tensor, torch.nn.Parameter)
            return torch.nn.Parameter(stand_in, requires_grad=False) if is_weight else stand_in

    with torch.inference_mode(False), torch.no_grad():
        forms = given.fixed.copy(fake)
        inputs: list[Input] = list(forms.inputs)
        step, hidden = given.step, given.hidden
        if given.step is not None and given.inputs is not None:
            placed = [fake(form) for form in given.inputs.forms]
            lengths = [
                [
                    _symbol(mode, f"{name}_kv_{batch}_{number}", value)
                    for number, value in enumerate(own)
                ]
                for batch, own in enumerate(given.inputs.numbers)
            ]
            step = bind_step(forms, given.step, given.inputs, placed, lengths)
            hidden = None if given.hidden is None else fake(given.hidden)
            inputs += placed
            inputs += [] if hidden is None else [hidden]
            inputs += [length for own in lengths for length in own]
        with backend.issuing(forms, order, names) as recorder:
            traced = trace(lambda: run(step, hidden), inputs, mode, names)
    return traced, recorder.take()


def _symbol(mode: FakeTensorMode, name: str, value: int) -> torch.SymInt:
    source, symbols = ConstantSource(name), mode.shape_env
    assert symbols is not None
    symbol = symbols.create_symbol(
        value,
        source,
        dynamic_dim=DimDynamic.DYNAMIC,
        positive=None,
        do_not_specialize_zero_one=True,
    )
    made = symbols.create_symintnode(symbol, hint=value, source=source)
    assert isinstance(made, torch.SymInt)
    return made
