"""A simulated step of a cluster as the folders of a profiler, one a die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hardware_models.errors import InputError
from twin.cluster.run import ClusterSimulation, Sample
from twin.engine.compiled.layout import BOUNDS
from twin.engine.timeline import OpRecord
from twin.graph.step_graph import PREFETCH_STREAM
from twin.report.ascend import AscendWriter


def check_dies(dies: Sequence[int] | None, count: int) -> list[int]:
    """The dies to export, each once and in order; ``None``: all of a cluster of ``count``.

    Raises:
        InputError: there are none, or one that the cluster does not have.
    """
    if dies is None:
        return list(range(count))
    for die in dies:
        if not 0 <= die < count:
            raise InputError("export_dies", die, f"numbers of dies, from 0 to {count - 1}")
    if not dies:
        raise InputError("export_dies", list(dies), "at least one die, or null for all")
    return sorted(set(dies))


def export_sample(
    folder: Path,
    simulation: ClusterSimulation,
    sample: Sample,
    dies: Sequence[int],
    about: dict[str, object],
    heard: Callable[[], None] = lambda: None,
) -> None:
    """Write the folders of ``dies``, one in memory at a time; ``heard`` is called after each.

    ``sample`` is what the simulation ran last.

    Raises:
        InputError: a file cannot be written.
    """
    cluster = replace(simulation.cluster, flat=simulation.step.flat)
    writer = AscendWriter(folder, "simulated")
    records = sample.records.reshape(-1)
    for number in dies:
        ops = cluster.ops_of(number)
        own = {}
        for op in ops:
            row, prefetch = records[op.index].item(), op.stream == PREFETCH_STREAM
            bound = BOUNDS[row[6]]
            own[op.index] = OpRecord(op.index, *row[:6], bound, prefetch)  # type: ignore[call-arg]
        _, rank = cluster.rank(*divmod(number, len(cluster.template.dies)))
        writer.write(cluster.die(number), rank, ops, own, about)
        heard()
