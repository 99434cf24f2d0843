"""Sizes of one step, derived from model, workload and deployment."""

from __future__ import annotations

import math
from collections import Counter
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
        """Query rows per sequence: one token and its drafts, or in prefill the whole prompt."""
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
        return die_rows(self.schedule, sequences)

    def attention_rows(self, sequences: int) -> int:
        """Token rows that attention computes on one die: those of its whole group."""
        return self.rows(sequences) * self.schedule.deployment.attention.attention_tp

    def head_rows(self, sequences: int) -> int:
        """Token rows on one attention die that reach lm_head.

        In prefill each prompt's last, of all micro-batches: dies that split a group's rows hold
        more or fewer of these, and are padded to the most.
        """
        if not self.schedule.workload.is_prefill:
            return self.rows(sequences)
        held = Counter(
            ((prompt + 1) * self.rows_per_sequence - 1) // self.rows(part)
            for part in self.micro_batches
            for prompt in range(part)
        )
        return max(held.values())

    def moe_chunks(self, sequences: int) -> tuple[int, ...]:
        """Token rows of an attention die that go through the experts at once, chunk by chunk."""
        rows, most = self.rows(sequences), self.schedule.moe.chunk_tokens
        if most is None:
            return (rows,)
        whole, rest = divmod(rows, most)
        return (most,) * whole + ((rest,) if rest else ())

    @property
    def copies_per_token(self) -> float:
        """Copies of a token that travel and are computed.

        Zero experts are served at the source, so only real_topk of them; but the direct
        transport takes real ids alone: there fillers (weight 0) stand for zero experts.
        """
        is_direct = self.schedule.deployment.is_direct
        return float(self.model.moe_topk) if is_direct else self.model.real_topk

    def arriving_rows(self, rows: int) -> float:
        """Token copies that one MoE die computes when every attention die sends ``rows``."""
        tokens = rows * self.schedule.deployment.attention.dies
        return tokens * self.copies_per_token / self.schedule.deployment.moe.dies

    def expert_rows(self, sequences: int) -> float:
        """Token copies that one MoE die computes when every group brings ``sequences``.

        Every die of a KVP group sends the rows that it holds, so each token comes kvp times.
        """
        return self.arriving_rows(self.rows(sequences))

    def distinct_expert_rows(self, sequences: int) -> float:
        """Those of :meth:`expert_rows` that are not the same token from another KVP die."""
        return self.expert_rows(sequences) / self.schedule.deployment.attention.kvp

    @property
    def local_experts(self) -> int:
        """Experts that one MoE die holds, redundant copies included."""
        total = self.model.n_routed_experts + self.schedule.moe.redundant_experts
        return total // self.schedule.deployment.moe.ep

    def active_experts(self, sequences: int) -> float:
        """Expected experts per MoE die that receive at least one row (of the largest chunk)."""
        return self.reached_experts(max(self.moe_chunks(sequences)))

    def reached_experts(self, rows: int) -> float:
        """Expected experts per MoE die that receive one of the ``rows`` of each attention die.

        balanced: ids dealt round-robin, so min(local, rows).  uniform: local x
        (1 - (1 - 1/E)^copies) for independent draws of all copies over E experts.  The
        copies of one token that the dies of a KVP group send reach the same experts.
        """
        distinct = self.arriving_rows(rows) / self.schedule.deployment.attention.kvp
        local = self.local_experts
        if self.schedule.workload.expert_load == "balanced":
            return float(min(local, max(1.0, distinct)))
        total = self.model.n_routed_experts + self.schedule.moe.redundant_experts
        copies = distinct * self.schedule.deployment.moe.dies
        reached: float = (1.0 - 1.0 / total) ** copies
        return max(local * (1.0 - reached), 1.0 / total)


def local_kv_tokens(kv_tokens: int, kvp: int, rank: int) -> int:
    """Tokens of a sequence that ``rank`` of its KVP group holds: token p lies on rank p % kvp."""
    return kv_tokens // kvp + (kv_tokens % kvp > rank)


def die_rows(schedule: Schedule, sequences: int) -> int:
    """:meth:`StepShapes.rows` of ``schedule``, whatever its model."""
    rows = sequences * schedule.workload.rows_per_sequence
    return math.ceil(rows / schedule.deployment.attention.attention_tp)


def micro_batches(schedule: Schedule) -> tuple[int, ...]:
    """Sequences of each micro-batch in the busiest attention group."""
    groups = schedule.deployment.attention.attention_groups
    sequences = math.ceil(schedule.workload.global_batch / groups)
    count = schedule.micro_batches
    base, rest = divmod(sequences, count)
    return tuple(base + (1 if i < rest else 0) for i in range(count))


def step_shapes(schedule: Schedule, model: ModelSpec) -> StepShapes:
    """The sizes of ``schedule``'s step of ``model``."""
    return StepShapes(model, schedule, micro_batches(schedule))
