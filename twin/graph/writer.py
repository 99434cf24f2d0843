"""GraphWriter: collects ops in issue order and works out cores, gaps and prefetches."""

from __future__ import annotations

from collections.abc import Sequence

from hardware_models.demand import Cores, OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops import HostLaunch, PrefetchWeight
from hardware_models.ops.host import HCCL_CALLS
from twin.deployment import GraphMode
from twin.graph.placement import ALL_CORES, Place
from twin.graph.step_graph import PREFETCH_STREAM, Die, Op, StepGraph
from twin.names import HOST_STREAM, LAUNCH
from twin.schedule import CoreLimit

OUTSIDE = Place("main", ALL_CORES, None)
"""Ops outside the layers: main stream, all cores, no scope."""

_GAP_PARAMETER: dict[GraphMode, str] = {
    "ge_graph": "launch_gap_graph_us",
    "npugraph_ex": "launch_gap_npugraph_us",
    "eager": "launch_gap_npugraph_us",
}
"""Captured graphs and eager streams hand tasks to the device one by one."""


class GraphWriter:
    """Builds a :class:`StepGraph` op by op; ops must be added in issue order.

    In eager mode the host of a die launches the ops of all its streams one after another.  As
    long as it never waits for its die, that is a release time of each op; with ``host_reads``
    it does wait, so its launches become ops of a stream of their own, behind what it reads.
    """

    def __init__(
        self,
        hardware: Hardware,
        graph_mode: GraphMode,
        dies: Sequence[Die],
        *,
        host_reads: bool = False,
    ) -> None:
        self._hardware = hardware
        self._eager = graph_mode == "eager"
        self._host_reads = host_reads
        self._gap_us = hardware[_GAP_PARAMETER[graph_mode]]
        self._dies = tuple(dies)
        self._ops: list[Op] = []
        self._scope_on: dict[tuple[int, str], str | None] = {}
        self._host_us = dict.fromkeys((die.index for die in dies), 0.0)
        self._marks: list[int] = []
        self._clipped: list[tuple[str, int, int]] = []

    def add(
        self,
        name: str,
        spec: OpSpec,
        die: int,
        place: Place,
        deps: Sequence[int] = (),
        *,
        scope_prefix: str = "",
        peer: int | None = None,
    ) -> int:
        """Append one op and return its index."""
        if self._host_reads and place.stream != HOST_STREAM:
            launch = self._launch(spec, die, place.stream, deps)
            host = Place(HOST_STREAM, ALL_CORES, None)
            deps = (*deps, self.add(name + LAUNCH, launch, die, host))
        elif self._eager and not self._host_reads:
            launch = self._launch(spec, die, place.stream, deps)
            self._host_us[die] += launch.us(self._hardware)
        limit = _most(place.limit, self._hardware)
        wanted = spec.cores(self._hardware)
        cores = Cores(min(wanted.aic, limit.aic), min(wanted.aiv, limit.aiv))
        scope = f"{scope_prefix}{place.scope}" if place.scope else None
        stream = (die, place.stream)
        inside = scope is not None and self._scope_on.get(stream) == scope
        first = stream not in self._scope_on
        gap_us = self._hardware["launch_gap_super_kernel_us"] if inside else self._gap_us
        if first or place.stream == HOST_STREAM:
            gap_us = 0.0
        index = len(self._ops)
        self._ops.append(
            Op(
                index=index,
                name=name,
                spec=spec,
                die=die,
                stream=place.stream,
                cores=cores,
                demand=spec.demand(self._hardware, cores),
                deps=tuple(deps),
                scope=scope,
                gap_us=gap_us,
                release_us=self._host_us[die],
                peer=peer,
                limit=limit,
            )
        )
        self._scope_on[stream] = scope
        return index

    def _launch(self, spec: OpSpec, die: int, stream: str, deps: Sequence[int]) -> HostLaunch:
        """What the host does for an op: events for each other stream of its die it waits for."""
        waits = {
            op.stream
            for op in (self._ops[dep] for dep in deps)
            if op.die == die and op.stream not in (stream, HOST_STREAM)
        }
        return HostLaunch(is_hccl=isinstance(spec, HCCL_CALLS), events=len(waits))

    def prefetch(
        self, name: str, die: int, *, weight: str, asked: int, size: int, after: int
    ) -> None:
        """Append a prefetch behind op ``after``, clipped to the weight's ``size`` in bytes."""
        given = min(asked, size)
        if given < asked and (weight, asked, given) not in self._clipped:
            self._clipped.append((weight, asked, given))
        spec = PrefetchWeight(weight, given, asked)
        self.add(name, spec, die, Place(PREFETCH_STREAM, ALL_CORES, None), (after,))

    def mark_period(self, index: int) -> None:
        """Note that op ``index`` closes a layer on die 0."""
        self._marks.append(index)

    def graph(self) -> StepGraph:
        """The finished graph."""
        return StepGraph(
            hardware=self._hardware,
            dies=self._dies,
            ops=tuple(self._ops),
            period_marks=tuple(self._marks),
            clipped=tuple(self._clipped),
        )


def _most(limit: CoreLimit, hardware: Hardware) -> Cores:
    """The most cores that a stream may use: its limit, or all of the die's."""
    return Cores(
        hardware.count("aic_count") if limit.aic is None else limit.aic,
        hardware.count("aiv_count") if limit.aiv is None else limit.aiv,
    )
