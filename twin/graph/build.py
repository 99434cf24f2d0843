"""Build the StepGraph of one decode step from schedule, model and hardware."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops import RowOp
from twin.deployment import Role
from twin.graph.blocks import (
    BlockOps,
    WeightKey,
    attention_ops,
    dense_ops,
    embed_ops,
    expert_ops,
    fill_ops,
    head_ops,
    moe_ops,
    mtp_ops,
    router_ops,
)
from twin.graph.placement import Placement
from twin.graph.prefill import build_prefill_graph
from twin.graph.role_writer import Pass, RoleWriter, layer_passes
from twin.graph.shapes import StepShapes, step_shapes
from twin.graph.step_graph import Die, StepGraph
from twin.graph.transfers import Transfers
from twin.graph.writer import GraphWriter
from twin.model_spec import ModelSpec
from twin.names import MOE_INPUT, NEXT, fork_op
from twin.schedule import Schedule
from twin.weights import weight_bytes


def build_step_graph(
    schedule: Schedule, model: ModelSpec, hardware: Hardware, *, layers: int | None = None
) -> StepGraph:
    """The ops of one step on representative dies; prefill has a builder of its own.

    Colocated: one die stands for all (no skew, so all are alike; of a KVP group the die that
    holds the most of the cache).  AFD with A = r F: one FFN die and the r attention dies that
    it serves; attention dies come first.  ``layers`` keeps only the first so many layers (head,
    tail and MTP stay whole).

    Raises:
        InputError: the schedule asks for something that is not simulated.
    """
    count = model.num_layers if layers is None else layers
    if schedule.workload.is_prefill:
        return build_prefill_graph(schedule, model, hardware, layers=count)
    shapes = step_shapes(schedule, model)
    ratio = schedule.deployment.attention_ratio
    is_afd = schedule.deployment.is_afd
    attention_role = schedule.deployment.attention_role
    dies = [Die(i, attention_role) for i in range(ratio)]
    if is_afd:
        dies.append(Die(ratio, "ffn"))
    writer = GraphWriter(hardware, schedule.deployment.graph_mode, dies)
    passes = layer_passes(count, len(shapes.micro_batches))
    sides = [_AttentionSide(writer, shapes, attention_role, die) for die in range(ratio)]
    ffn = _FfnSide(writer, shapes, ratio) if is_afd else None
    for side in sides:
        side.begin()
    for run in passes:
        sent = [side.layer(run) for side in sides]
        if ffn is not None:
            ffn.layer(run, sent)
            _bring_back(ffn, sides, schedule.deployment.passes_ahead)
    if ffn is not None:
        _bring_back(ffn, sides, 0)
    for side in sides:
        side.finish()
    return writer.graph()


def _bring_back(ffn: _FfnSide, sides: list[_AttentionSide], ahead: int) -> None:
    """Let the FFN die send what it computed, but for the last ``ahead`` passes."""
    for run, back in ffn.leave(ahead):
        for side, ops in zip(sides, back, strict=True):
            side.returned(run, ops)


def _weight_sizes(shapes: StepShapes, role: Role) -> dict[str, int]:
    schedule = shapes.schedule
    names = {p.weight.removeprefix(NEXT) for p in schedule.prefetches_of(role)}
    return {
        name: weight_bytes(shapes.model, schedule.deployment, name, schedule.moe.redundant_experts)
        for name in names
    }


class _AttentionSide:
    """One die that holds attention and dense FFN (and, colocated, the MoE).

    With micro-batches the closing ``add`` of a pass is issued only before the same
    micro-batch enters its next layer, so that other micro-batches run while it is away.
    """

    def __init__(self, writer: GraphWriter, shapes: StepShapes, role: Role, die: int) -> None:
        self._writer, self._shapes, self._die = writer, shapes, die
        schedule = shapes.schedule
        self._ratio = schedule.deployment.attention_ratio
        self._is_afd = schedule.deployment.is_afd
        self._fork = fork_op(schedule.deployment)
        self._transfers = Transfers(shapes)
        self._out = RoleWriter(writer, schedule, role, die, _weight_sizes(shapes, role))
        names = [name for name, _ in self._main_ops(layer_passes(1, 1)[0], 1)]
        self._placement = Placement(schedule, role, [*names, "add"])
        self._arrived: dict[int, tuple[int, ...]] = {}
        self._pending: dict[int, tuple[Pass, int, int]] = {}
        self._last: dict[int, int] = {}

    def begin(self) -> None:
        """Ops before the layers."""
        last = self._out.outside_ops(embed_ops(self._shapes, self._shapes.sequences))
        self._last = dict.fromkeys(range(len(self._shapes.micro_batches)), last)

    def layer(self, run: Pass) -> int:
        """One pass; returns the op that sends (AFD) or the op that makes u (colocated)."""
        self._close(run.micro_batch)
        sequences = self._shapes.micro_batches[run.micro_batch]
        last = self._last[run.micro_batch]
        joined = -1
        for name, spec in self._main_ops(run, sequences):
            last = self._out.layer_op(run, name, spec, self._placement.main(name), (last,))
            if name != self._fork:
                continue
            if self._is_afd:
                joined = self._send(run, sequences, last)
            else:
                joined = self._moe(run, sequences, last)
        self._last[run.micro_batch] = last
        self._pending[run.micro_batch] = (run, sequences, joined)
        return joined

    def returned(self, run: Pass, ops: tuple[int, ...]) -> None:
        """Note which ops of the FFN die bring this pass's MoE output back."""
        self._arrived[run.micro_batch] = ops

    def finish(self) -> None:
        """Close the open passes, then the ops behind the layers and the MTP passes."""
        for micro_batch in range(len(self._shapes.micro_batches)):
            self._close(micro_batch)
        rows = self._shapes.rows(self._shapes.sequences)
        ends = tuple(sorted(set(self._last.values())))
        norm: BlockOps = [("final_norm", RowOp("rms_norm", rows, self._shapes.model.hidden_size))]
        last = self._out.outside_ops([*norm, *head_ops(self._shapes, self._shapes.sequences)], ends)
        for number in range(self._shapes.schedule.workload.next_n):
            ops = mtp_ops(self._shapes, self._shapes.sequences, number)
            last = self._out.outside_ops(ops, (last,))

    def _main_ops(self, run: Pass, sequences: int) -> BlockOps:
        at = run.key
        shapes = self._shapes
        return [
            *attention_ops(shapes, sequences, "attention.0", at, fused_add=False),
            *self._router_ops(sequences, at),
            *dense_ops(shapes, sequences, "dense.0", at),
            *attention_ops(shapes, sequences, "attention.1", at, fused_add=True),
            *dense_ops(shapes, sequences, "dense.1", at),
        ]

    def _router_ops(self, sequences: int, at: WeightKey) -> BlockOps:
        if not self._shapes.schedule.deployment.is_direct:
            return []
        rows = self._shapes.rows(sequences)
        ops = [*router_ops(self._shapes, rows, at), *fill_ops(self._shapes, rows)]
        return [(f"moe.{name}", spec) for name, spec in ops]

    def _moe(self, run: Pass, sequences: int, made: int) -> int:
        place = self._placement.moe(MOE_INPUT)
        last = made
        rows = self._shapes.rows(sequences)
        for name, spec in moe_ops(self._shapes, sequences, rows, run.key):
            last = self._out.layer_op(run, name, spec, place, (last,))
        return last

    def _send(self, run: Pass, sequences: int, made: int) -> int:
        spec, _ = self._transfers.to_ffn(sequences)
        place = self._placement.link("link")
        return self._out.layer_op(run, "afd.send", spec, place, (made,), peer=self._ratio)

    def _close(self, micro_batch: int) -> None:
        pending = self._pending.pop(micro_batch, None)
        if pending is None:
            return
        run, sequences, joined = pending
        last = self._last[micro_batch]
        if self._is_afd:
            _, spec = self._transfers.to_attention(sequences)
            place = self._placement.link("link")
            arrived = self._arrived.pop(micro_batch)
            for name, op in [*self._transfers.wait("attention"), ("afd.recv", spec)]:
                joined = self._out.layer_op(run, name, op, place, arrived, peer=self._ratio)
                arrived = (joined,)
        add = RowOp("add", self._shapes.rows(sequences), self._shapes.model.hidden_size)
        place = self._placement.main("add")
        index = self._out.layer_op(run, "add", add, place, (last, joined))
        self._last[micro_batch] = index
        if self._die == 0 and micro_batch == 0:
            self._writer.mark_period(index)


class _FfnSide:
    """One die that holds experts and serves ``ratio`` attention dies, pass by pass.

    Pairs have transfers of their own, side by side; under direct one kernel serves all
    attention dies.
    """

    def __init__(self, writer: GraphWriter, shapes: StepShapes, ratio: int) -> None:
        self._shapes, self._ratio = shapes, ratio
        self._transfers = Transfers(shapes)
        schedule = shapes.schedule
        self._is_direct = schedule.deployment.is_direct
        self._parts = schedule.deployment.ffn_transfers
        self._out = RoleWriter(writer, schedule, "ffn", ratio, _weight_sizes(shapes, "ffn"))
        names = [name for name, _ in self._ops(layer_passes(1, 1)[0], 1)]
        self._placement = Placement(schedule, "ffn", names)
        self._computed: deque[tuple[Pass, int]] = deque()

    def layer(self, run: Pass, sent: list[int]) -> None:
        """One pass: receive from all attention dies, compute."""
        sequences = self._shapes.micro_batches[run.micro_batch]
        _, receive = self._transfers.to_ffn(sequences)
        arrived = [tuple(sent)] if self._is_direct else [(op,) for op in sent]
        for name, spec in [*self._transfers.wait("ffn"), ("afd.recv", receive)]:
            arrived = [
                (self._transfer(run, name, spec, part, ops),) for part, ops in enumerate(arrived)
            ]
        last = tuple(op for ops in arrived for op in ops)
        for name, spec in self._ops(run, sequences):
            last = (self._out.layer_op(run, name, spec, self._placement.main(name), last),)
        self._computed.append((run, last[0]))

    def leave(self, ahead: int) -> Iterator[tuple[Pass, list[tuple[int, ...]]]]:
        """Send back what was computed, but for the last ``ahead`` passes.

        With each pass, what every attention die has to wait for.
        """
        while len(self._computed) > ahead:
            run, last = self._computed.popleft()
            send, _ = self._transfers.to_attention(self._shapes.micro_batches[run.micro_batch])
            back = [
                self._transfer(run, "afd.send", send, part, (last,)) for part in range(self._parts)
            ]
            yield run, [(op,) for op in (back * self._ratio if self._is_direct else back)]

    def _ops(self, run: Pass, sequences: int) -> BlockOps:
        at, shapes = run.key, self._shapes
        if not self._is_direct:
            return moe_ops(shapes, sequences, shapes.rows(sequences) * self._ratio, at)
        rows, active = shapes.expert_rows(sequences), shapes.active_experts(sequences)
        return [(f"moe.{name}", spec) for name, spec in expert_ops(shapes, rows, active, at)]

    def _transfer(
        self, run: Pass, name: str, spec: OpSpec, part: int, deps: tuple[int, ...]
    ) -> int:
        # Transfers with several attention dies run side by side, on a link queue each, and
        # share the role's cores; prefetches behind them are issued once, after the last.
        suffix = "" if self._parts == 1 else f".{part}"
        place = self._placement.link("link" + suffix, part, self._parts)
        trigger = name if part + 1 == self._parts else ""
        # One kernel for several attention dies loads the own port alone.
        peer = part if self._parts == self._ratio else None
        return self._out.layer_op(run, name + suffix, spec, place, deps, peer=peer, trigger=trigger)
