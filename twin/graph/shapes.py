"""Sizes of one decode step, derived from model, workload and deployment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hardware_models.ops.tiling import DType
from twin.model_spec import ModelSpec
from twin.schedule import Schedule


@dataclass(frozen=True, slots=True)
class StepShapes:
    """Per-die sizes of one pass over the layers.

    ``micro_batches`` holds the sequences of each micro-batch on the busiest attention die
    (graph modes pad every die to that number).
    """

    model: ModelSpec
    schedule: Schedule
    micro_batches: tuple[int, ...]
    attention_parallel: int
    """Attention data-parallel groups (dies when attention_tp is 1)."""

    @property
    def sequences(self) -> int:
        """Sequences per attention die."""
        return sum(self.micro_batches)

    @property
    def rows_per_sequence(self) -> int:
        """Query rows per sequence: one token and its drafts."""
        return self.schedule.workload.rows_per_sequence

    @property
    def dtype(self) -> DType:
        """Element type of activations and of the weights that are not quantised."""
        return "fp32" if self.schedule.deployment.quantisation == "fp32" else "bf16"

    @property
    def is_quantised(self) -> bool:
        """Whether dense FFN and experts are int8 (w8a8)."""
        return self.schedule.deployment.quantisation == "w8a8"

    def rows(self, sequences: int) -> int:
        """Token rows on one attention die for so many sequences."""
        return sequences * self.rows_per_sequence

    def expert_rows(self, sequences: int) -> float:
        """Token copies that one MoE die computes when every attention die brings ``sequences``.

        Zero experts are served at the source, so only real_topk copies travel.
        """
        tokens = self.rows(sequences) * self.attention_parallel
        return tokens * self.model.real_topk / self.schedule.deployment.moe.dies

    @property
    def local_experts(self) -> int:
        """Experts that one MoE die holds, redundant copies included."""
        total = self.model.n_routed_experts + self.schedule.moe.redundant_experts
        return total // self.schedule.deployment.moe.ep

    def active_experts(self, sequences: int) -> float:
        """Expected experts per MoE die that receive at least one row.

        balanced: ids dealt round-robin, so min(local, rows).  uniform: local x
        (1 - (1 - 1/E)^copies) for independent draws of all copies over E experts.
        """
        rows = self.expert_rows(sequences)
        local = self.local_experts
        if self.schedule.workload.expert_load == "balanced":
            return float(min(local, max(1.0, rows)))
        total = self.model.n_routed_experts + self.schedule.moe.redundant_experts
        copies = rows * self.schedule.deployment.moe.dies
        reached: float = (1.0 - 1.0 / total) ** copies
        return max(local * (1.0 - reached), 1.0 / total)


def step_shapes(schedule: Schedule, model: ModelSpec) -> StepShapes:
    """Sequences per attention die (rounded up: the busiest die), cut into micro-batches."""
    role = schedule.deployment.attention
    parallel = role.dies // role.attention_tp
    sequences = math.ceil(schedule.workload.global_batch / parallel)
    count = schedule.deployment.afd.micro_batches if schedule.deployment.afd else 1
    base, rest = divmod(sequences, count)
    parts = tuple(base + (1 if i < rest else 0) for i in range(count))
    return StepShapes(model, schedule, parts, parallel)
