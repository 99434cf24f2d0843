"""Putting loads, KV lengths and jitter of one seed into a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hardware_models.demand import Cores, OpSpec
from hardware_models.ops import (
    BatchMatMul,
    Combine,
    Dispatch,
    ExpertReceive,
    ExpertSend,
    GroupedMatMul,
    MatMul,
    MlaDecodeAttention,
    QuantMatMul,
    RowOp,
)
from twin.cluster.build import Cluster
from twin.cluster.files import Longs, read_kv_lengths
from twin.cluster.load import Experts, Routing, experts_of
from twin.cluster.options import ClusterOptions
from twin.deployment import Role
from twin.engine.compiled.layout import Ints
from twin.graph.shapes import local_kv_tokens
from twin.graph.step_graph import Op
from twin.names import parse_name

_CUBE_ROWS = 16
"""Rows of a product count in steps of this many: groups that round alike are alike."""


@dataclass(frozen=True)
class Draw:
    """One seed: the row of each op, how long its head is, and how tokens fell."""

    rows: Ints
    head_scale: npt.NDArray[np.float64]
    routing: Routing | None
    kv_tokens: Longs


class Drawer:
    """Draws seeds for one cluster; demands that were once computed are kept."""

    def __init__(self, cluster: Cluster, options: ClusterOptions) -> None:
        self._cluster, self._options = cluster, options
        self._known: dict[tuple[object, ...], int] = {}
        self._count = len(cluster.template.ops)
        self._plain_rows: Ints = cluster.flat.arrays.ops["klass"].copy()
        shapes = cluster.shapes
        ops = cluster.template.ops
        classes: dict[tuple[object, ...], int] = {}
        self._class_of = [
            classes.setdefault((op.spec, op.limit, op.gap_us), len(classes)) for op in ops
        ]
        self._attention = [op for op in ops if isinstance(op.spec, MlaDecodeAttention)]
        self._passes: dict[tuple[int, int], list[Op]] = {}
        for op in ops:
            if _is_skewed(op, cluster.template.dies[op.die].role):
                self._passes.setdefault(_pass_of(op), []).append(op)
        self._layers = 1 + max((layer for layer, _ in self._passes), default=-1)
        moe = cluster.schedule.deployment.moe
        self._ranks = moe.ep
        self._copies = [
            round(shapes.distinct_expert_rows(part) * moe.dies) for part in shapes.micro_batches
        ]

    def _experts(self, rng: np.random.Generator) -> Experts:
        schedule, model = self._cluster.schedule, self._cluster.model
        return experts_of(
            self._options.load,
            self._options.placement,
            layers=self._layers,
            experts=model.n_routed_experts,
            ranks=self._ranks,
            redundant=schedule.moe.redundant_experts,
            rng=rng,
        )

    def draw(self, seed: int) -> Draw:
        """Everything that ``seed`` decides.

        Raises:
            InputError: a file of the options is wrong.
        """
        streams = np.random.SeedSequence(seed).spawn(4)
        kv_rng, share_rng, token_rng, head_rng = (np.random.default_rng(s) for s in streams)
        rows = self._plain_rows.copy()
        kv_tokens = self._kv_tokens(kv_rng)
        self._set_attention(rows, kv_tokens)
        routing = None
        if self._options.load.kind != "balanced" and self._passes:
            routing = self._route(self._experts(share_rng), token_rng)
            self._set_experts(rows, routing)
        return Draw(rows, self._heads(head_rng), routing, kv_tokens)

    # KV lengths.

    def _kv_tokens(self, rng: np.random.Generator) -> Longs:
        """Mean KV length that each attention die holds: its group's, or its part of that."""
        role = self._cluster.schedule.deployment.attention
        means = self._group_kv_tokens(rng, role.attention_groups).tolist()
        parts = [
            local_kv_tokens(mean, role.kvp, rank) for mean in means for rank in range(role.kvp)
        ]
        return np.repeat(np.array(parts, np.int64), role.attention_tp)

    def _group_kv_tokens(self, rng: np.random.Generator, groups: int) -> Longs:
        """Mean KV length of each attention group's sequences; groups take consecutive requests."""
        workload, kv = self._cluster.schedule.workload, self._options.kv
        requests = workload.global_batch
        if kv.file is not None:
            lengths = read_kv_lengths(kv.file, requests)
        elif kv.low is not None and kv.high is not None:
            lengths = rng.integers(kv.low, kv.high, requests, endpoint=True)
        else:
            return np.full(groups, workload.kv_tokens, np.int64)
        # Graphs pad every group to the batch of the fullest one.
        wide = self._cluster.shapes.sequences
        padded = np.zeros(groups * wide)
        padded[:requests] = lengths
        held = np.bincount(np.arange(requests) // wide, minlength=groups)
        means = padded.reshape(groups, wide).sum(axis=1) / np.maximum(held, 1)
        return np.asarray(np.maximum(1, np.rint(means)), np.int64)

    def _set_attention(self, rows: Ints, kv_tokens: Longs) -> None:
        ratio = self._cluster.attention_dies
        for op in self._attention:
            for copy, kv in enumerate(kv_tokens[op.die :: ratio].tolist()):
                rows[copy * self._count + op.index] = self._row(op, kv, _with_kv(kv))

    # Experts.

    def _route(self, experts: Experts, rng: np.random.Generator) -> Routing:
        # With several groups of EP ranks, each group routes its own tokens.
        deployment = self._cluster.schedule.deployment
        groups = deployment.moe.dies // self._ranks
        tokens = [
            np.concatenate(
                [experts.route(layer, self._copies[part] // groups, rng) for _ in range(groups)]
            )
            for layer, part in sorted(self._passes)
        ]
        # All dies of a KVP group send the same tokens, to the same experts.
        return Routing(np.stack(tokens) * deployment.attention.kvp)

    def _set_experts(self, rows: Ints, routing: Routing) -> None:
        per_rank = routing.per_rank
        rounded = -np.sort(-(-(-routing.tokens // _CUBE_ROWS) * _CUBE_ROWS), axis=2)
        active = routing.active
        for at, key in enumerate(sorted(self._passes)):
            for op in self._passes[key]:
                for copy, tokens in enumerate(per_rank[at].tolist()):
                    groups = rounded[at, copy]
                    number = self._expert_row(op, tokens, groups, int(active[at, copy]))
                    rows[copy * self._count + op.index] = number

    def _expert_row(self, op: Op, tokens: int, groups: Longs, active: int) -> int:
        spec = op.spec
        if isinstance(spec, GroupedMatMul):
            some = tuple(groups[:active].tolist())
            return self._row(
                op,
                (tokens, groups[:active].tobytes()),
                lambda s: replace(s, rows=float(tokens), active_experts=active, groups=some),
            )
        if isinstance(spec, RowOp):
            return self._row(op, tokens, lambda s: replace(s, rows=max(1, tokens)))
        part = tokens / self._cluster.attention_dies
        if isinstance(spec, ExpertReceive):
            return self._row(op, tokens, lambda s: replace(s, rows=part))
        if isinstance(spec, ExpertSend):
            busiest = max(spec.die_rows, float(tokens))
            return self._row(op, tokens, lambda s: replace(s, rows=part, die_rows=busiest))
        assert isinstance(spec, Dispatch | Combine)
        # A rank is busy with what it sends or with what comes, whichever is more.
        most = max(spec.rows, float(tokens))
        return self._row(op, most, lambda s: replace(s, rows=most))

    def _row(self, op: Op, what: object, change: Callable[[Any], OpSpec]) -> int:
        """The row of ``op`` with a changed spec; ``what`` tells changes apart."""
        key = (self._class_of[op.index], what)
        number = self._known.get(key)
        if number is None:
            spec, hardware, limit = change(op.spec), self._cluster.hardware, op.limit
            wanted = spec.cores(hardware)
            assert limit is not None
            cores = Cores(min(wanted.aic, limit.aic), min(wanted.aiv, limit.aiv))
            number = self._cluster.table.add(spec.demand(hardware, cores), cores, op.gap_us)
            self._known[key] = number
        return number

    # Jitter.

    def _heads(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Log-normal factors of mean 1 for all heads; none where nothing varies."""
        jitter = self._options.jitter
        if jitter.matmul == 0.0 and jitter.other == 0.0:
            return np.zeros(0)
        products = (MatMul, QuantMatMul, BatchMatMul, GroupedMatMul)
        cv = np.array(
            [
                jitter.matmul if isinstance(op.spec, products) else jitter.other
                for op in self._cluster.template.ops
            ]
        )
        variance = np.log1p(cv**2)
        normal = rng.standard_normal((self._cluster.copies, self._count))
        return np.asarray(np.exp(np.sqrt(variance) * normal - variance / 2)).reshape(-1)


def _with_kv(kv_tokens: int) -> Callable[[Any], OpSpec]:
    return lambda spec: replace(spec, kv_tokens=kv_tokens)


def _pass_of(op: Op) -> tuple[int, int]:
    """Layer and micro-batch of an op of a layer."""
    name = parse_name(op.name)
    assert name.layer is not None
    return name.layer, name.micro_batch


def _is_skewed(op: Op, role: Role) -> bool:
    """Whether expert load changes the op."""
    if isinstance(op.spec, Dispatch | Combine | GroupedMatMul):
        return True
    if isinstance(op.spec, ExpertSend | ExpertReceive):
        return role == "ffn"
    return isinstance(op.spec, RowOp) and op.name.endswith("moe.swiglu")
