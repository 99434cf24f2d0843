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

    ``micro_batches`` holds the sequences of each micro-batch in the busiest attention group
    (graph modes pad every group to that number).  A group is one die, or the attention_tp
    or kvp dies that compute the same sequences.
    """

    model: ModelSpec
    schedule: Schedule
    micro_batches: tuple[int, ...]

    @property
    def sequences(self) -> int:
        """Sequences per attention group; every die of it holds their KV cache, or its part."""
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

    @property
    def local_heads(self) -> int:
        """Heads that one die computes."""
        return self.model.num_attention_heads // self.schedule.deployment.attention.attention_tp

    @property
    def local_kv_tokens(self) -> int:
        """Cached tokens of a sequence on the first die of a KVP group, which holds most."""
        role = self.schedule.deployment.attention
        return local_kv_tokens(self.schedule.workload.kv_tokens, role.kvp, 0)

    def rows(self, sequences: int) -> int:
        """Token rows on one attention die between attentions, for so many of its group.

        A group's rows lie scattered over its attention_tp dies, padded to equal numbers; all
        dies of a KVP group hold all of them.
        """
        rows = sequences * self.rows_per_sequence
        return math.ceil(rows / self.schedule.deployment.attention.attention_tp)

    def attention_rows(self, sequences: int) -> int:
        """Token rows that attention computes on one die: those of its whole group."""
        return self.rows(sequences) * self.schedule.deployment.attention.attention_tp

    def expert_rows(self, sequences: int) -> float:
        """Token copies that one MoE die computes when every group brings ``sequences``.

        Zero experts are served at the source, so only real_topk copies travel.  Every die of
        a KVP group sends the rows that it holds, so each token comes kvp times.
        """
        tokens = self.rows(sequences) * self.schedule.deployment.attention.dies
        return tokens * self.model.real_topk / self.schedule.deployment.moe.dies

    def distinct_expert_rows(self, sequences: int) -> float:
        """Those of :meth:`expert_rows` that are not the same token from another KVP die."""
        return self.expert_rows(sequences) / self.schedule.deployment.attention.kvp

    @property
    def local_experts(self) -> int:
        """Experts that one MoE die holds, redundant copies included."""
        total = self.model.n_routed_experts + self.schedule.moe.redundant_experts
        return total // self.schedule.deployment.moe.ep

    def active_experts(self, sequences: int) -> float:
        """Expected experts per MoE die that receive at least one row.

        balanced: ids dealt round-robin, so min(local, rows).  uniform: local x
        (1 - (1 - 1/E)^copies) for independent draws of all copies over E experts.  The
        copies of one token that the dies of a KVP group send reach the same experts.
        """
        rows = self.distinct_expert_rows(sequences)
        local = self.local_experts
        if self.schedule.workload.expert_load == "balanced":
            return float(min(local, max(1.0, rows)))
        total = self.model.n_routed_experts + self.schedule.moe.redundant_experts
        copies = rows * self.schedule.deployment.moe.dies
        reached: float = (1.0 - 1.0 / total) ** copies
        return max(local * (1.0 - reached), 1.0 / total)


def local_kv_tokens(kv_tokens: int, kvp: int, rank: int) -> int:
    """Tokens of a sequence that ``rank`` of its KVP group holds: token p lies on rank p % kvp."""
    return kv_tokens // kvp + (kv_tokens % kvp > rank)


def step_shapes(schedule: Schedule, model: ModelSpec) -> StepShapes:
    """Sequences per attention group (rounded up: the busiest one), cut into micro-batches."""
    groups = schedule.deployment.attention.attention_groups
    sequences = math.ceil(schedule.workload.global_batch / groups)
    count = schedule.deployment.afd.micro_batches if schedule.deployment.afd else 1
    base, rest = divmod(sequences, count)
    parts = tuple(base + (1 if i < rest else 0) for i in range(count))
    return StepShapes(model, schedule, parts)
