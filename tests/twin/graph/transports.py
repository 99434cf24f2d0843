"""The shipped AFD schedule on other transports, ratios and core limits."""

from __future__ import annotations

from dataclasses import replace

from twin.deployment import Transport
from twin.schedule import CoreLimit, Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import with_ratio
from twin.search.transport import with_transport


def on_transport(
    transport: Transport,
    ratio: int = 1,
    micro_batches: int = 1,
    *,
    link: CoreLimit | None = None,
    main: CoreLimit | None = None,
) -> Schedule:
    """The recipe's AFD schedule; ``link`` and ``main`` limit those streams of both roles."""
    schedule = with_ratio(with_transport(load_schedule("recipe_afd"), transport), ratio)
    deployment = schedule.deployment
    assert deployment.afd is not None
    afd = replace(deployment.afd, micro_batches=micro_batches)
    streams = {"main": main or CoreLimit(), "link": link or CoreLimit()}
    return replace(
        schedule,
        deployment=replace(deployment, afd=afd),
        stages=tuple(replace(stage, streams=streams) for stage in schedule.stages),
    )
