"""What main streams do: gaps in which one role waits for the other, and what bounds them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twin.cluster.build import Cluster
from twin.engine.compiled.layout import BOUNDS, Records
from twin.names import JOIN, main_ops, parse_name

Floats = npt.NDArray[np.float64]

WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWait:
    """Idle time of a role's main stream in one layer while it waits for the other role.

    Attention dies wait at the layer's ``add``, FFN dies before the first MoE op; micro-batches
    of a layer add up.  The mean over the role's dies, and the longest single gap of any.
    """

    layer: int
    role: str
    wait_us: float
    longest_us: float


class GapCounter:
    """Adds up the gaps of samples of one cluster; there are none without AFD."""

    def __init__(self, cluster: Cluster) -> None:
        self._places: dict[tuple[int, str], list[int]] = defaultdict(list)
        self._dies: dict[str, int] = {"attention": cluster.attention_dies, "ffn": 1}
        if cluster.schedule.deployment.is_afd:
            first = main_ops(cluster.schedule.deployment, "ffn")[0]
            waiting = {"attention": JOIN, "ffn": first}
            for op in cluster.template.ops:
                role, name = cluster.template.dies[op.die].role, parse_name(op.name)
                if name.layer is not None and name.local == waiting[role]:
                    self._places[name.layer, role].append(op.index)
        self._sums = dict.fromkeys(self._places, 0.0)
        self._longest = dict.fromkeys(self._places, 0.0)
        self._copies = 0

    def add(self, records: Records) -> None:
        """Count one sample's records, [copy, op]."""
        self._copies += len(records)
        for key, places in self._places.items():
            waits = records["wait_us"][:, places]
            self._sums[key] += float(waits.sum())
            self._longest[key] = max(self._longest[key], float(waits.max()))

    def waits(self) -> list[EventWait]:
        """Layer by layer; means over the samples."""
        return [
            EventWait(
                layer=layer,
                role=role,
                wait_us=self._sums[layer, role] / (self._copies * self._dies[role]),
                longest_us=self._longest[layer, role],
            )
            for layer, role in sorted(self._places)
        ]


class BoundCounter:
    """Adds up what the main streams of each role spend their time on."""

    def __init__(self, cluster: Cluster) -> None:
        self._places: dict[str, list[int]] = defaultdict(list)
        for op in cluster.template.ops:
            if op.stream == "main":
                self._places[cluster.template.dies[op.die].role].append(op.index)
        self._times: dict[str, Floats] = {role: np.zeros(len(BOUNDS) + 1) for role in self._places}

    def add(self, records: Records) -> None:
        """Count one sample's records, [copy, op]."""
        peer = BOUNDS.index("peer")
        for role, places in self._places.items():
            mine = records[:, places]
            waited = mine["peer_wait_us"]
            busy = mine["end_us"] - mine["start_us"] - waited
            bound = np.where(mine["bound"] == peer, BOUNDS.index("latency"), mine["bound"])
            times = self._times[role]
            times += np.bincount(bound.reshape(-1), busy.reshape(-1), minlength=len(times))
            times[peer] += float(waited.sum())
            times[-1] += float(mine["wait_us"].sum())

    def shares(self) -> dict[str, dict[str, float]]:
        """Shares of the main streams' time by bound, largest first, and ``wait``: idle time.

        ``peer`` is time in collectives before the last member came; the rest of a
        collective counts under what held its own body.
        """
        names = (*BOUNDS, WAIT)
        found = {}
        for role, times in self._times.items():
            total = float(times.sum()) or 1.0
            order = np.argsort(-times, kind="stable").tolist()
            found[role] = {names[i]: float(times[i]) / total for i in order if times[i] > 0.0}
        return found
