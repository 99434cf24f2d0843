"""One steady layer of a shipped schedule, and what runs outside the layers, op by op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from hardware_models.hardware import Hardware
from twin.engine.compiled import simulate
from twin.engine.timeline import Timeline
from twin.graph.build import build_step_graph
from twin.graph.step_graph import StepGraph
from twin.models import load_model
from twin.schedule_io import load_schedule

_LAYER, _LAYERS = 2, 4


@dataclass(frozen=True, slots=True)
class LayerOp:
    """An op of the layer: times in us from the end of the layer before."""

    name: str
    die: int
    stream: str
    start_us: float
    duration_us: float
    wait_us: float
    bound: str

    def payload(self) -> dict[str, object]:
        """As result.json holds it."""
        return asdict(self)


def layer_ops(schedule_name: str, hardware: Hardware) -> list[LayerOp]:
    """The ops of a middle layer (prefetches included) on every simulated die."""
    graph, timeline = _run(schedule_name, hardware)
    origin = timeline.records[graph.period_marks[_LAYER - 1]].end_us
    prefix = f"layer.{_LAYER}."
    return _timed(graph, timeline, origin, prefix, lambda name: name.startswith(prefix))


def outside_ops(schedule_name: str, hardware: Hardware) -> list[LayerOp]:
    """The ops outside the layers: embedding, output head, sampling and every MTP pass.

    Times count from the end of the last layer; the embedding stands before the first.
    """
    graph, timeline = _run(schedule_name, hardware)
    origin = timeline.records[graph.period_marks[_LAYERS - 1]].end_us
    return _timed(graph, timeline, origin, "", lambda name: not name.startswith("layer."))


def _run(schedule_name: str, hardware: Hardware) -> tuple[StepGraph, Timeline]:
    schedule = load_schedule(schedule_name)
    graph = build_step_graph(schedule, load_model(schedule.model), hardware, layers=_LAYERS)
    return graph, simulate(graph)


def _timed(
    graph: StepGraph,
    timeline: Timeline,
    origin_us: float,
    prefix: str,
    wanted: Callable[[str], bool],
) -> list[LayerOp]:
    return [
        LayerOp(
            op.name.removeprefix(prefix),
            op.die,
            op.stream,
            record.start_us - origin_us,
            record.end_us - record.start_us,
            record.wait_us,
            record.bound,
        )
        for op in graph.ops
        if wanted(op.name)
        for record in (timeline.records[op.index],)
    ]
