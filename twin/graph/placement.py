"""Where a layer's ops run: the stage, stream, core limit and SuperKernel scope of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hardware_models.ops.vector_transfer import DEFAULT_CORES
from twin.deployment import Role
from twin.schedule import CoreLimit, Schedule, Stage

ALL_CORES = CoreLimit()


@dataclass(frozen=True, slots=True)
class Place:
    """Stream, core limit and scope (``None`` outside every SuperKernel) of an op."""

    stream: str
    limit: CoreLimit
    scope: str | None


class Placement:
    """Places of a role's layer ops, given the schedule's stages for that role."""

    def __init__(self, schedule: Schedule, role: Role, main_ops: Sequence[str]) -> None:
        self._stages = [stage for stage in schedule.stages if stage.role == role]
        self._scopes = frozenset(schedule.super_kernel)
        afd = schedule.deployment.afd
        # camp2p's kernels are told their cores; direct's have those of their stream, which in
        # eager has no limit.
        deployment = schedule.deployment
        is_free = deployment.is_direct and deployment.graph_mode == "eager"
        self._limits_link = afd is not None and afd.holds_cores and not is_free
        self._stage_of_main: dict[str, Stage] = {}
        current = 0
        for name in main_ops:
            stage = self._stages[current]
            self._stage_of_main[name] = stage
            if stage.ends_after == name and current + 1 < len(self._stages):
                current += 1
        self._moe_stage = next((s for s in self._stages if "moe" in s.streams), None)

    def main(self, op: str) -> Place:
        """Place of an op of the main stream."""
        return self._place(self._stage_of_main[op], "main")

    def moe(self, op_before: str) -> Place:
        """Place of the MoE ops; without a stream of their own, behind ``op_before`` on main."""
        if self._moe_stage is not None:
            return self._place(self._moe_stage, "moe")
        stage = self._stage_of_main[op_before]
        if stage.ends_after == op_before:
            stage = self._stages[self._stages.index(stage) + 1]
        return self._place(stage, "main")

    def link(self, stream: str, part: int = 0, parts: int = 1) -> Place:
        """Place of AFD transfers, in no scope: one of ``parts`` that share the role's cores.

        Over SDMA they take no cores; else the link stream's limit, or the transport's default.
        """
        if not self._limits_link:
            return Place(stream, ALL_CORES, None)
        asked = self._stages[-1].streams["link"].aiv
        each, rest = divmod(DEFAULT_CORES if asked is None else asked, parts)
        return Place(stream, CoreLimit(aiv=each + (part < rest)), None)

    def _place(self, stage: Stage, stream: str) -> Place:
        scope = next((s for s in (stage.name, f"{stage.name}.{stream}") if s in self._scopes), None)
        return Place(stream, stage.streams[stream], scope)
