"""The communicators of a simulated die, and the links that its collectives used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hardware_models.ops import BulkExchange, Collective, HcclCollective
from twin.graph.step_graph import Op
from twin.report.ascend_launches import STEP, Launch


def group_of(op: Op) -> int:
    """The dies that meet in a collective: 2 where it is a transfer to a peer."""
    if isinstance(op.spec, Collective | HcclCollective):
        return op.spec.group
    return op.spec.ep if isinstance(op.spec, BulkExchange) else 2


def communicator(op: Op, role: str, rank: int) -> str:
    """The name of a collective's communicator on rank ``rank`` of its role.

    Consecutive ranks meet; a transfer's two ends have one of their own.
    """
    if op.peer is not None:
        return f"link_{min(op.die, op.peer)}_{max(op.die, op.peer)}"
    size = group_of(op)
    return f"{role}_{size}_{rank // size}"


def communication_matrix(launches: Sequence[Launch], role: str, rank: int) -> Mapping[str, object]:
    """communication_matrix.json: the links of each kind of collective, summed over the step.

    Members of a communicator have local numbers, as profilers give them.
    """
    sums: dict[str, tuple[Launch, float, float]] = {}
    for launch in launches:
        if not launch.collective or launch.op.peer is not None:
            continue
        kind = launch.collective.partition("__")[0].removeprefix("hcom_").lower()
        name = f"{kind}-total@{communicator(launch.op, role, rank)}"
        _, moved_mb, transit_ms = sums.get(name, (launch, 0.0, 0.0))
        record, demand = launch.record, launch.op.demand
        moved_mb += (demand.link_bytes or demand.sdma_bytes) / 1e6
        transit_ms += max(0.0, record.body_us - record.peer_wait_us) / 1e3
        sums[name] = (launch, moved_mb, transit_ms)
    found = {name: _links(*own, rank) for name, own in sums.items()}
    return {f"step{STEP}": {"p2p": {}, "collective": found}}


def _links(launch: Launch, moved_mb: float, transit_ms: float, rank: int) -> dict[str, object]:
    """What the die sent to each other member; to itself nothing."""
    size = group_of(launch.op)
    local, each_mb = rank % size, moved_mb / max(1, size - 1)
    links: dict[str, object] = {}
    for end in range(size):
        share_mb, time_ms = (0.0, 0.0) if end == local else (each_mb, transit_ms)
        links[f"{local}-{end}"] = {
            "Transport Type": "LOCAL" if end == local else "HCCS",
            "Transit Size(MB)": share_mb,
            "Transit Time(ms)": time_ms,
            "Bandwidth(GB/s)": share_mb / time_ms if time_ms else 0.0,
            "Op Name": launch.collective,
        }
    return links
