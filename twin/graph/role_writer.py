"""RoleWriter: writes one die's ops and issues the prefetches that hang on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardware_models.demand import OpSpec
from twin.deployment import Role
from twin.graph.placement import Place
from twin.graph.writer import OUTSIDE, GraphWriter
from twin.names import NEXT
from twin.schedule import Prefetch, Schedule


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch's run through one layer; names start with ``prefix``.

    ``following`` is the prefix of the pass that runs next on the same die (the next
    micro-batch of the layer, or the next layer), ``None`` behind the last.
    """

    layer: int
    micro_batch: int
    prefix: str
    following: str | None

    @property
    def is_last(self) -> bool:
        """Whether no layer pass follows."""
        return self.following is None

    def key(self, weight: str) -> str:
        """The name of a weight of this pass's layer: each pass reads it anew."""
        return self.prefix + weight


def layer_passes(layers: int, micro_batches: int) -> list[Pass]:
    """All passes of a step in issue order: layer by layer, micro-batch by micro-batch."""

    def prefix(layer: int, micro_batch: int) -> str:
        return f"layer.{layer}." if micro_batches == 1 else f"layer.{layer}.mb{micro_batch}."

    keys = [(layer, part) for layer in range(layers) for part in range(micro_batches)]
    prefixes = [prefix(*key) for key in keys]
    following: list[str | None] = [*prefixes[1:], None]
    return [
        Pass(layer, part, own, after)
        for (layer, part), own, after in zip(keys, prefixes, following, strict=True)
    ]


class RoleWriter:
    """Ops of one die, in issue order, with the role's prefetches."""

    def __init__(
        self,
        writer: GraphWriter,
        schedule: Schedule,
        role: Role,
        die: int,
        weight_sizes: Mapping[str, int],
    ) -> None:
        self._writer = writer
        self._die = die
        self._sizes = weight_sizes
        self._after: dict[str, list[Prefetch]] = {}
        for prefetch in schedule.prefetches_of(role):
            self._after.setdefault(prefetch.after, []).append(prefetch)

    def layer_op(
        self,
        run: Pass,
        name: str,
        spec: OpSpec,
        place: Place,
        deps: Sequence[int] = (),
        *,
        peer: int | None = None,
        trigger: str | None = None,
    ) -> int:
        """One op of a layer pass, followed by the prefetches that its output triggers.

        ``trigger`` is the name that prefetches know the op by (its own when ``None``).
        """
        index = self._writer.add(
            run.prefix + name,
            spec,
            self._die,
            place,
            deps,
            scope_prefix=run.prefix,
            peer=peer,
        )
        for prefetch in self._after.get(name if trigger is None else trigger, ()):
            self._issue(run, prefetch, index)
        return index

    def outside_ops(self, ops: Sequence[tuple[str, OpSpec]], deps: Sequence[int] = ()) -> int:
        """A chain of ops outside the layers; returns the last one's index."""
        last: Sequence[int] = deps
        for name, spec in ops:
            last = (self._writer.add(name, spec, self._die, OUTSIDE, last),)
            for prefetch in self._after.get(name, ()):
                self._emit(f"prefetch.{prefetch.weight}", prefetch.weight, prefetch, last[0])
        return last[0]

    def _issue(self, run: Pass, prefetch: Prefetch, after: int) -> None:
        weight = prefetch.weight
        name = f"{run.prefix}prefetch.{weight}"
        if weight.startswith(NEXT):
            if run.following is not None:
                self._emit(name, run.following + weight.removeprefix(NEXT), prefetch, after)
        elif weight == "lm_head" or weight.startswith("mtp."):
            # Weights outside the layers: only the last pass is near enough to them.
            if run.is_last:
                self._emit(name, weight, prefetch, after)
        else:
            self._emit(name, run.key(weight), prefetch, after)

    def _emit(self, name: str, key: str, prefetch: Prefetch, after: int) -> None:
        size = self._sizes[prefetch.weight.removeprefix(NEXT)]
        self._writer.prefetch(
            name, self._die, weight=key, asked=prefetch.bytes, size=size, after=after
        )
