"""One steady layer of a shipped schedule, op by op."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hardware_models.hardware import Hardware
from twin.engine.compiled import simulate
from twin.graph.build import build_step_graph
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
    schedule = load_schedule(schedule_name)
    graph = build_step_graph(schedule, load_model(schedule.model), hardware, layers=_LAYERS)
    timeline = simulate(graph)
    origin = timeline.records[graph.period_marks[_LAYER - 1]].end_us
    prefix = f"layer.{_LAYER}."
    return [
        LayerOp(
            op.name.removeprefix(prefix),
            op.die,
            op.stream,
            record.start_us - origin,
            record.end_us - record.start_us,
            record.wait_us,
            record.bound,
        )
        for op in graph.ops
        if op.name.startswith(prefix)
        for record in (timeline.records[op.index],)
    ]
