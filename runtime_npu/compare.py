"""Does the model issue what the StepGraph says? Record and graph, stream by stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from hardware_models.hardware import Hardware
from hardware_models.ops import PrefetchWeight
from runtime_npu.record import OpRecord
from twin.graph.step_graph import StepGraph
from twin.names import HOST_STREAM, LAUNCH


@dataclass(frozen=True, slots=True)
class Issued:
    """What record and graph must agree on for one op; its fields are what differences name.

    Core limits are numbers here: all cores of the die where nothing limits the stream.
    """

    name: str
    aic: int
    aiv: int
    scope: str | None
    prefetch_bytes: int
    waits: tuple[str, ...]


def differences(records: Sequence[OpRecord], graph: StepGraph, die: int = 0) -> list[str]:
    """Where the order, limits, scopes, prefetches or waits of a step differ.

    ``die`` is the one of the graph that stands for the rank that issued the records.  Where the
    graph has the host's launches (prefill), they are the order of all records.

    Per stream, the first op out of order is reported and ends the stream's comparison;
    before it, every field that differs.  Empty: they agree.
    """
    if any(op.stream == HOST_STREAM for op in graph.ops):
        records = _with_launches(records)
    issued = _by_stream((record.stream, _of_record(record, graph.hardware)) for record in records)
    expected = _of_graph(graph, die)
    found: list[str] = []
    for stream in sorted(issued.keys() | expected.keys()):
        found += _stream_differences(stream, issued.get(stream, []), expected.get(stream, []))
    return found


def _stream_differences(
    stream: str, issued: Sequence[Issued], expected: Sequence[Issued]
) -> list[str]:
    found: list[str] = []
    for position, (ours, graphs) in enumerate(zip_longest(issued, expected)):
        if ours is None or graphs is None or ours.name != graphs.name:
            found.append(
                f"{stream}[{position}]: issued {ours.name if ours else 'nothing'}, "
                f"the step graph has {graphs.name if graphs else 'nothing'}"
            )
            break
        for field in Issued.__dataclass_fields__:
            mine, theirs = getattr(ours, field), getattr(graphs, field)
            if mine != theirs:
                found.append(f"{ours.name}: {field} is {mine!r}, the step graph has {theirs!r}")
    return found


def _with_launches(records: Sequence[OpRecord]) -> list[OpRecord]:
    """The host's launch of each op before it, which the op waits for; what the host does, it does.

    The host issues ops in the order of ``records``, so that is the order of its launches.
    """
    launched: list[OpRecord] = []
    for record in records:
        if record.stream == HOST_STREAM:
            launched.append(record)
            continue
        name = record.name + LAUNCH
        launched.append(OpRecord(name, "launch", HOST_STREAM, aic=None, aiv=None, scope=None))
        launched.append(replace(record, waits=(*record.waits, name)))
    return launched


def _of_record(record: OpRecord, hardware: Hardware) -> Issued:
    return Issued(
        name=record.name,
        aic=hardware.count("aic_count") if record.aic is None else record.aic,
        aiv=hardware.count("aiv_count") if record.aiv is None else record.aiv,
        scope=record.scope,
        prefetch_bytes=record.prefetch_bytes,
        waits=tuple(sorted(record.waits)),
    )


def _of_graph(graph: StepGraph, die: int) -> dict[str, list[Issued]]:
    """The ops of a die by stream, in issue order.

    A dependency on another die's op is the transfer itself, not a wait of a stream.
    """
    ops = graph.ops
    return _by_stream(
        (
            op.stream,
            Issued(
                name=op.name,
                aic=op.limit.aic if op.limit else graph.hardware.count("aic_count"),
                aiv=op.limit.aiv if op.limit else graph.hardware.count("aiv_count"),
                scope=op.scope,
                prefetch_bytes=int(op.spec.bytes) if isinstance(op.spec, PrefetchWeight) else 0,
                waits=tuple(
                    sorted(
                        ops[d].name
                        for d in op.deps
                        if ops[d].die == die and ops[d].stream != op.stream
                    )
                ),
            ),
        )
        for op in ops
        if op.die == die
    )


def _by_stream(items: Iterable[tuple[str, Issued]]) -> dict[str, list[Issued]]:
    streams: dict[str, list[Issued]] = {}
    for stream, item in items:
        streams.setdefault(stream, []).append(item)
    return streams
