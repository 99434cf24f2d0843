"""A rank's passes on its NPU: prefill eagerly, decode as the schedule's graph mode says.

A graph takes its inputs by place: weights and cache, which never move, then what the step
brings.  The first pass of a kind makes it, or finds it in the compile cache; the record of its
ops is the one made then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from hardware_models.hardware import Hardware
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_issue import Listener
from runtime_npu.backends.npu_order import EagerOrder
from runtime_npu.batch import Step
from runtime_npu.executor import Executor
from runtime_npu.kv_cache import KvCache
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash, StepOutput
from runtime_npu.npu.attention_ops import MASK
from runtime_npu.npu.compile_cache import CompileCache, CompiledPass, Part
from runtime_npu.npu.forms import Forms, bind_cache, bind_weights
from runtime_npu.npu.graph_code import Kernel, graph_code, kernel_of
from runtime_npu.npu.pass_trace import (
    PassInputs,
    Run,
    draft_run,
    ffn_run,
    main_run,
    trace_pass,
    tracing_mode,
)
from runtime_npu.npu.step_inputs import bind_step, step_inputs
from runtime_npu.npu.window_forms import WindowForms
from runtime_npu.npu.windows import OpenWindow
from runtime_npu.record import OpRecord
from twin.deployment import Deployment
from twin.workload import Phase


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A pass made ready: ``placed`` are its own inputs on the device, refilled at every step."""

    kernel: Kernel
    used: tuple[int, ...]
    placed: tuple[torch.Tensor, ...]
    records: tuple[OpRecord, ...]


class NpuExecutor(Executor):
    """Runs ``model``, whose weights move to the device now and leave the host."""

    cache_device = "meta"

    def __init__(
        self,
        model: LongcatFlash | FfnDie,
        backend: NpuBackend,
        hardware: Hardware,
        deployment: Deployment,
        cache: CompileCache,
    ) -> None:
        super().__init__(model)
        self._backend, self._hardware = backend, hardware
        self._deployment, self._mode = deployment, deployment.graph_mode
        self._compile_cache = cache
        self._eager = EagerOrder(hardware)
        self._npu: Any = torch.npu  # type: ignore[attr-defined]
        self._events: list[tuple[Any, Any]] = []
        self._graphs: dict[str, GraphPass] = {}
        self._fixed = Forms()
        self._table_width = 0
        self._window: OpenWindow | None = None
        self._tracing = tracing_mode()
        values = dict(model.named_parameters())
        with self._tracing:
            empty = {
                name: torch.empty(value.shape, dtype=value.dtype, device="meta")
                for name, value in values.items()
            }
        model.load_state_dict(empty, assign=True)
        model.requires_grad_(requires_grad=False)
        # The host's memory comes free weight by weight; what is left of a weight names its form.
        bind_weights(self._fixed, model, _weight_on_device, values.pop)
        self._fixed.bind_mask(_weight_on_device(torch.ones(MASK, dtype=torch.bool).triu(1)))

    @override
    def use_cache(self, cache: KvCache, table_width: int) -> None:
        self._cache, self._table_width = cache, table_width
        bind_cache(self._fixed, cache, _zeros, _alias, self._deployment)

    def use_window(self, opened: OpenWindow, forms: WindowForms) -> None:
        """Direct transfers go through ``opened``, with ``forms``."""
        self._window = opened
        self._fixed.bind_direct(forms)

    @override
    def forward(self, step: Step) -> StepOutput:
        run = main_run(self._attends, self._cache)
        tokens, hidden, logits = self._pass("main", "main", step.phase, run, step)
        return StepOutput(hidden, logits, tokens.cpu())

    @override
    def draft(self, number: int, step: Step, hidden: torch.Tensor) -> StepOutput:
        run = draft_run(self._attends, self._cache, number)
        tokens, hidden = self._pass("mtp", f"pass-{number}", step.phase, run, step, hidden)
        return StepOutput(hidden, torch.empty(0), tokens.cpu())

    @override
    def serve(self, phase: Phase, heights: Sequence[int]) -> None:
        assert isinstance(self.model, FfnDie)
        self._pass("main", "ffn", phase, ffn_run(self.model, phase, heights))

    @override
    def take_forward_s(self) -> float:
        self._npu.synchronize()
        total_ms = sum(start.elapsed_time(end) for start, end in self._events)
        self._events.clear()
        return float(total_ms) / 1e3

    @property
    def _attends(self) -> LongcatFlash:
        assert isinstance(self.model, LongcatFlash)
        return self.model

    def _pass(
        self,
        part: Part,
        name: str,
        phase: Phase,
        run: Run,
        step: Step | None = None,
        hidden: torch.Tensor | None = None,
    ) -> Sequence[torch.Tensor]:
        """One pass, timed on the device between the first op and the last one of main."""
        is_graph = phase == "decode" and self._mode != "eager"
        inputs = None
        if step is not None:
            width = (
                self._table_width
                if is_graph
                else max(batch.block_table.shape[1] for batch in step.batches)
            )
            on_device = is_graph and self._mode == "ge_graph"
            inputs = step_inputs(step, width, lengths_on_device=on_device)
        given = PassInputs(self._fixed, step, inputs, hidden)
        if not is_graph:
            return self._eagerly(run, given)
        return self._replayed(part, name, run, given)

    def _eagerly(self, run: Run, given: PassInputs) -> Sequence[torch.Tensor]:
        forms, step = given.fixed.opened(), given.step
        if step is not None and given.inputs is not None:
            placed = [to_npu(form) for form in given.inputs.forms]
            step = bind_step(forms, step, given.inputs, placed, given.inputs.kv_lengths)
        with self._backend.issuing(forms, self._eager, Listener()) as recorder:
            outputs = self._timed(lambda: run(step, given.hidden))
        self._backend.recorder.replay(recorder.take())
        return outputs

    def _replayed(
        self, part: Part, name: str, run: Run, given: PassInputs
    ) -> Sequence[torch.Tensor]:
        ready = self._graphs.get(name)
        is_first = ready is None
        if ready is None:
            ready = self._graphs[name] = self._made_ready(part, name, run, given)
        numbers: tuple[int, ...] = ()
        if given.inputs is not None:
            for placed, form in zip(ready.placed, given.inputs.forms, strict=True):
                placed.copy_(form, non_blocking=True)
            numbers = tuple(length for own in given.inputs.numbers for length in own)
        hidden = () if given.hidden is None else (given.hidden,)
        every = (*self._fixed.inputs, *ready.placed, *hidden, *numbers)
        arguments = [every[number] for number in ready.used]
        outputs = self._timed(lambda: ready.kernel(*arguments))
        self._backend.recorder.replay(ready.records)
        if is_first:
            self._npu.synchronize()
            self._compile_cache.seal(part, name, self._described(given))
        return outputs

    def _made_ready(self, part: Part, name: str, run: Run, given: PassInputs) -> GraphPass:
        cache, described = self._compile_cache, self._described(given)
        compiled = cache.load(part, name, described)
        folder = cache.folder(part, name)
        if compiled is None:
            traced, records = trace_pass(
                name, run, given, self._backend, self._hardware, self._mode, self._tracing
            )
            code = graph_code(traced, self._mode, folder)
            compiled = CompiledPass(code, traced.used, tuple(map(dataclasses.asdict, records)))
            cache.save(part, name, compiled)
        placed = () if given.inputs is None else map(to_npu, given.inputs.forms)
        return GraphPass(
            kernel_of(compiled.code, folder),
            compiled.used,
            tuple(placed),
            tuple(_record(record) for record in compiled.records),
        )

    def _described(self, given: PassInputs) -> dict[str, str]:
        """All inputs, as the compile cache compares them."""
        hidden = () if given.hidden is None else (given.hidden,)
        own = () if given.inputs is None else given.inputs.forms
        numbers = 0 if given.inputs is None else sum(map(len, given.inputs.numbers))
        return {
            "fixed inputs": _shapes(self._fixed.inputs),
            "step inputs": _shapes((*own, *hidden)),
            "numbers": str(numbers),
        }

    def _timed(self, call: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
        start, end = (self._npu.Event(enable_timing=True) for _ in range(2))
        start.record()
        outputs = call()
        end.record()
        self._events.append((start, end))
        return outputs


def _zeros(host: torch.Tensor) -> torch.Tensor:
    return torch.zeros(host.shape, dtype=host.dtype, device="npu")


def _alias(form: torch.Tensor) -> torch.Tensor:
    return form.view(form.shape)


def to_npu(host: torch.Tensor) -> torch.Tensor:
    """``host`` on the NPU, contiguous."""
    return host.to("npu").contiguous()


def _weight_on_device(host: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(to_npu(host), requires_grad=False)


def _shapes(tensors: Sequence[torch.Tensor]) -> str:
    return "; ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors)


def _record(fields: Any) -> OpRecord:
    return OpRecord(**{**fields, "waits": tuple(fields["waits"])})
