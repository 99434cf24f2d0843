"""What runs a rank's passes: the model itself, or the graphs that were compiled of it.

Steps come from the host and tokens go back to it; hidden states and logits stay where they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from typing_extensions import override

from runtime_npu.batch import Step
from runtime_npu.kv_cache import KvCache
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash, StepOutput
from twin.workload import Phase


class Executor(ABC):
    """Runs the passes of ``model``; ``cache_device`` is where a cache for it is made."""

    cache_device = "cpu"

    def __init__(self, model: LongcatFlash | FfnDie) -> None:
        self.model = model

    @abstractmethod
    def use_cache(self, cache: KvCache, table_width: int) -> None:
        """From now on passes write ``cache``; no block table gets wider than ``table_width``."""

    @abstractmethod
    def forward(self, step: Step) -> StepOutput:
        """The main pass over the rows of ``step``; ``tokens`` come back on the host."""

    @abstractmethod
    def draft(self, number: int, step: Step, hidden: torch.Tensor) -> StepOutput:
        """MTP pass ``number`` over the rows of ``step``, as :meth:`LongcatFlash.draft`."""

    @abstractmethod
    def serve(self, phase: Phase, heights: Sequence[int]) -> None:
        """A pass of an FFN die over the rows that its attention dies send."""

    def take_forward_s(self) -> float | None:
        """Seconds that passes held the device since the last call; ``None``: nobody measures."""
        return None


class ModelExecutor(Executor):
    """Calls the model."""

    @override
    def use_cache(self, cache: KvCache, table_width: int) -> None:
        self._cache = cache

    @override
    def forward(self, step: Step) -> StepOutput:
        assert isinstance(self.model, LongcatFlash)
        output: StepOutput = self.model(step, self._cache)
        return output

    @override
    def draft(self, number: int, step: Step, hidden: torch.Tensor) -> StepOutput:
        assert isinstance(self.model, LongcatFlash)
        return self.model.draft(number, step, hidden, self._cache)

    @override
    def serve(self, phase: Phase, heights: Sequence[int]) -> None:
        self.model(phase, heights)
