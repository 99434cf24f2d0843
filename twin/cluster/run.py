"""Running a cluster: one coupled step per seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hardware_models.errors import DeadlockError
from hardware_models.hardware import Hardware
from twin.cluster.build import Cluster, build_cluster
from twin.cluster.draw import Draw, Drawer
from twin.cluster.options import ClusterOptions
from twin.engine.compiled import Step
from twin.engine.compiled.layout import Records
from twin.engine.compiled.waiting import deadlock_message
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.graph.step_graph import StepGraph
from twin.model_spec import ModelSpec
from twin.schedule import Schedule


@dataclass(frozen=True)
class Sample:
    """One simulated step: what the seed decided, and the records of all ops, [copy, op]."""

    seed: int
    step_us: float
    draw: Draw
    records: Records


class ClusterSimulation:
    """A cluster and the memory to run it, seed by seed.

    Where dies differ, the fitted average skew of dispatch and combine (``ep_skew_us``) is
    set to 0: it stands for what is simulated here.

    Raises:
        InputError: an option or the schedule is wrong, or asks for what is not simulated.
        DeadlockError: an op asks for more cores than its die has.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: ModelSpec,
        hardware: Hardware,
        options: ClusterOptions | None = None,
        *,
        layers: int | None = None,
    ) -> None:
        options = options or ClusterOptions()
        options.check()
        if options.has_skew:
            hardware = hardware.with_values({"ep_skew_us": 0.0})
        self.cluster: Cluster = build_cluster(schedule, model, hardware, layers=layers)
        self._drawer = Drawer(self.cluster, options)
        self.step = Step(self.cluster.flat)

    def run(self, seed: int, options: EngineOptions = DEFAULT_OPTIONS) -> Sample:
        """Simulate the step of ``seed``; the next run writes over the sample's records.

        Raises:
            InputError: a file of the options is wrong.
            DeadlockError: collectives wait for each other.
        """
        draw = self.draw(seed)
        self.prepare(draw)
        step_us = self.again(options)
        records = self.step.records.reshape(self.cluster.copies, -1)
        return Sample(seed, step_us, draw, records)

    def draw(self, seed: int) -> Draw:
        """What ``seed`` decides.

        Raises:
            InputError: a file of the options is wrong.
        """
        return self._drawer.draw(seed)

    def again(self, options: EngineOptions = DEFAULT_OPTIONS) -> float:
        """Simulate the step of the draw that is in the graph; the end of its last op in us.

        Raises:
            DeadlockError: collectives wait for each other.
        """
        rows = np.arange(len(self.step.flat.arrays.rows), dtype=np.int32)
        answers = self.step.run_many(rows[None, :], options)
        if answers[0, 2]:
            graph = self.step_graph()
            raise DeadlockError(deadlock_message(graph, self.step.flat, self.step.work))
        return float(answers[0, 0])

    def step_graph(self) -> StepGraph:
        """The step of the draw that is in the graph, as objects."""
        return replace(self.cluster, flat=self.step.flat).step_graph()

    def prepare(self, draw: Draw) -> None:
        """Put the numbers of ``draw`` into the graph."""
        self.step.set_rows(self.cluster.table)
        arrays = self.step.flat.arrays
        arrays.ops["klass"][:] = draw.rows
        arrays = arrays._replace(head_scale=draw.head_scale)
        self.step.flat = replace(self.step.flat, arrays=arrays)
