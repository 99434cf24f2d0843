"""What ``search.executor`` chooses."""

from __future__ import annotations

from twin.search.config import Executor
from twin.search.pool import Processes, Workers, available_cpus
from twin.search.ray_nodes import RayNodes


def workers_of(executor: Executor, count: int | None) -> Workers:
    """The workers of a search, ``count`` of them (``None``: one for each CPU).

    Raises:
        MachineError: Ray is asked for and missing.
    """
    return RayNodes(count) if executor == "ray" else Processes(count or available_cpus())
