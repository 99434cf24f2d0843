"""Rows for the fit from a profile: one a distinct launch, its median time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibration.kernel import KernelRow, spec_text
from calibration.profile_fit import IN_PROFILES, LOCAL_EXCHANGES
from calibration.profiles.diagnosis import collectives_of
from calibration.profiles.folder import RankFiles
from calibration.profiles.kind_time import Rater
from calibration.profiles.mapping import Context, Mapped, UnmappedTally, map_kernel
from calibration.profiles.measured import measured_context
from calibration.profiles.profile import read_rank
from calibration.profiles.skipped import SkippedRows
from calibration.reading import SHORTEST_LAUNCH_US
from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware

MOST_ROWS_A_KIND = 40
"""Launches of one kind beyond these, the ones that took longest in all, teach little more."""

_COLLECTIVE = "hccl_collective"


@dataclass(frozen=True, slots=True)
class ProfileRows:
    """What a profile gives to the fit.

    ``launches`` counts the kernels behind ``rows``; ``left_out`` says by reason how many
    kernels, and what share of all kernels' time, the fit does not see.
    """

    rows: tuple[KernelRow, ...]
    launches: int
    left_out: tuple[tuple[str, int, float], ...]
    skipped: tuple[SkippedRows, ...]


def rows_of(
    files: Sequence[RankFiles], hardware: Hardware, kv_tokens: int, ep: int, source: str
) -> ProfileRows:
    """Group the launches of all ranks by kind and spec.

    A median stands for each group, so that a launch that waited does not.  Collectives are
    left out: their spans hold the waiting for other ranks.

    Raises:
        InputError: a file cannot be used at all.
    """
    known = collectives_of(files)
    given = Context(kv_tokens, ep, known.dies, known.moved_mb)
    rater, tally = Rater(hardware), UnmappedTally()
    groups: dict[tuple[str, OpSpec], list[float]] = {}
    skipped: list[SkippedRows] = []
    for rank_files in files:
        rank = read_rank(rank_files)
        context = measured_context(rank_files, given)
        skipped += rank.skipped
        for kernel in (*rank.counted.computing, *rank.counted.collectives):
            mapped = _usable(rater.checked(map_kernel(kernel, context)))
            tally.add(mapped)
            if mapped.spec is not None:
                groups.setdefault((mapped.kind, mapped.spec), []).append(kernel.duration_us)
    rows = tuple(_rows(groups, hardware.name, source))
    return ProfileRows(
        rows=rows,
        launches=sum(len(times) for times in groups.values()),
        left_out=tuple((row.reason, row.count, row.share) for row in tally.rows()),
        skipped=tuple(skipped),
    )


def _usable(mapped: Mapped) -> Mapped:
    if mapped.spec is None:
        return mapped
    reason = ""
    if mapped.kind == _COLLECTIVE:
        reason = "collectives: their time holds the waiting for other ranks"
    elif mapped.kind not in IN_PROFILES:
        reason = f"{mapped.kind}: no parameters of its own"
    elif mapped.kind in LOCAL_EXCHANGES and getattr(mapped.spec, "ep", 0) != 1:
        reason = f"{mapped.kind}: its time holds the waiting for other ranks"
    elif mapped.kernel.duration_us < SHORTEST_LAUNCH_US:
        reason = f"shorter than {SHORTEST_LAUNCH_US} us"
    return Mapped(mapped.kernel, mapped.kind, None, reason) if reason else mapped


def _rows(
    groups: dict[tuple[str, OpSpec], list[float]], hardware: str, source: str
) -> Iterable[KernelRow]:
    kinds: dict[str, list[tuple[OpSpec, list[float]]]] = {}
    for (kind, spec), times in groups.items():
        kinds.setdefault(kind, []).append((spec, times))
    for kind, members in kinds.items():
        members.sort(key=lambda member: -sum(member[1]))
        for spec, times in members[:MOST_ROWS_A_KIND]:
            text = spec_text((spec,))
            yield KernelRow(
                row=text,
                kind=kind,
                setting=f"{text}, {len(times)} launches",
                specs=(spec,),
                measured_us=statistics.median(times),
                hardware=hardware,
                place="in_network",
                source=source,
            )
