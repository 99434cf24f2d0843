"""Where the work of a search runs: on the nodes of a Ray cluster.

The same items as on one machine, so the same shards: nodes only compute, the process that asks
writes.  A node that is lost costs the items that it was at, which Ray runs again elsewhere.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from hardware_models.errors import MachineError
from twin.search.code_version import code_version
from twin.search.pool import Item, Result, Work, Workers

# Items that wait on the cluster for each one that is worked on: no worker waits for this process.
_AHEAD = 2
_PATIENCE_S = 5.0


class RayNodes(Workers):
    """The CPUs of a Ray cluster, ``count`` of them at most (``None``: all).

    The cluster is the one of ``RAY_ADDRESS``, else one that runs on this machine, else one that
    is started here for the block.

    Raises:
        MachineError: Ray is missing or cannot be reached, or a node has another version.
    """

    def __init__(self, count: int | None) -> None:
        self._asked = count
        self._ray = _ray()
        self._is_ours = False

    def __enter__(self) -> RayNodes:
        # Nobody asked for statistics about this use to be sent anywhere.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not self._ray.is_initialized():
            _check_reachable(os.environ.get("RAY_ADDRESS", ""))
            try:
                self._ray.init(logging_level=logging.ERROR, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                where = os.environ.get("RAY_ADDRESS", "a cluster of this machine")
                raise MachineError(f"Ray: {where} cannot be reached: {error}") from None
            self._is_ours = True
        cpus = int(self._ray.cluster_resources().get("CPU", 1))
        self.count = min(cpus, self._asked or cpus)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_ours:
            self._ray.shutdown()

    def unordered(
        self, work: Work[Item, Result], items: Sequence[Item]
    ) -> Iterator[tuple[int, Result]]:
        """See :meth:`Workers.unordered`."""
        run = self._ray.remote(_call).options(num_cpus=1, max_retries=-1)
        shared, code = self._ray.put(work), code_version()
        left = deque(enumerate(items))
        places: dict[Any, int] = {}
        errors: dict[int, Exception] = {}
        try:
            while places or left:
                while left and len(places) < _AHEAD * self.count:
                    place, item = left.popleft()
                    places[run.remote(code, shared, item)] = place
                (done, *_), _ = self._ray.wait(list(places), num_returns=1)
                place = places.pop(done)
                try:
                    result = self._ray.get(done)
                except self._ray.exceptions.RayTaskError as error:
                    # Nothing more is begun; the first item that fails says why.
                    errors[place] = self._told(error.cause)
                    left.clear()
                except self._ray.exceptions.RayError as error:
                    raise self._told(error) from None
                else:
                    yield place, result
        finally:
            for unfinished in places:
                self._ray.cancel(unfinished, force=True)
        if errors:
            raise errors[min(errors)]

    def _told(self, error: Exception) -> Exception:
        """An error of the work as it is; one of Ray's own (a lost node, a module missing there)."""
        if not isinstance(error, self._ray.exceptions.RayError):
            return error
        return MachineError(f"Ray: {str(error).splitlines()[0]}")


def _check_reachable(address: str) -> None:
    """Refuse a ``host:port`` that nobody answers at: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), _PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise MachineError(f"Ray: RAY_ADDRESS {address} cannot be reached: {error}") from None


def _call(code: str, work: Callable[[Any], Any], item: Any) -> Any:
    """On a node: ``work`` of an item, if the node computes as the process that asks does."""
    if code != (here := code_version()):
        raise MachineError(
            f"Ray: node {platform.node()} has {here}, the search {code}: install the same "
            "version of longcat-twin on every node"
        )
    return work(item)


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        needed = "search.executor=ray needs Ray: pip install 'longcat-twin[cluster]'"
        raise MachineError(needed) from None
