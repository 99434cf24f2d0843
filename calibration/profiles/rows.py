"""Rows for the fit from a profile: one a distinct launch, its median time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from calibration.kernel import KernelRow, spec_text
from calibration.profile_fit import IN_PROFILES
from calibration.profiles.collectives import Collectives, collectives_of
from calibration.profiles.folder import RankFiles
from calibration.profiles.kind_time import Rater
from calibration.profiles.mapping import Context, Mapped, UnmappedTally, in_steps, map_kernel
from calibration.profiles.measured import noted_context
from calibration.profiles.profile import read_rank
from calibration.profiles.skipped import SkippedRows
from calibration.reading import SHORTEST_LAUNCH_US
from hardware_models.demand import OpSpec
from hardware_models.hardware import Hardware
from hardware_models.ops import Collective, Combine, Dispatch, HcclCollective

MOST_ROWS_A_KIND = 40
"""Launches of one kind beyond these, the ones that took longest in all, teach little more."""


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
    runs: Iterable[Sequence[RankFiles]], hardware: Hardware, kv_tokens: int, ep: int, source: str
) -> ProfileRows:
    """Group the launches of all ranks of all runs by kind and spec.

    A median stands for each group, so that a launch that waited does not.  What ranks exchange
    counts without the wait for the last of them: a collective with its own time (see
    :class:`Collectives`), as an op of a step and, unless a kernel on vector cores carries it,
    as HCCL's benchmark has it; a dispatch or combine with the shortest of its
    ranks' times, where the profile has all of them.

    Raises:
        InputError: a file cannot be used at all.
    """
    found = _Found(Rater(hardware))
    skipped: list[SkippedRows] = []
    for files in runs:
        known = collectives_of(files)
        given = Context(kv_tokens, ep, known.dies, known.moved_mb)
        exchanges = _Exchanges()
        for rank_files in files:
            rank = read_rank(rank_files)
            context = noted_context(rank_files, given)
            skipped += rank.skipped
            for kernel in rank.counted.computing:
                mapped = found.usable(map_kernel(kernel, context))
                if not exchanges.take(rank.rank, mapped):
                    found.add(mapped, kernel.duration_us)
            for kernel in rank.counted.collectives:
                found.add_collective(map_kernel(kernel, context), known)
        exchanges.give(found)
    return ProfileRows(
        rows=tuple(_rows(found.groups, hardware.name, source)),
        launches=sum(len(times) for times in found.groups.values()),
        left_out=tuple((row.reason, row.count, row.share) for row in found.tally.rows()),
        skipped=tuple(skipped),
    )


@dataclass(slots=True)
class _Found:
    """Times by kind and spec, and what was left out."""

    rater: Rater
    tally: UnmappedTally = field(default_factory=UnmappedTally)
    groups: dict[tuple[str, OpSpec], list[float]] = field(default_factory=dict)

    def usable(self, mapped: Mapped) -> Mapped:
        """The kernel, without its spec where its time would teach nothing or wrong things."""
        checked, reason = self.rater.checked(mapped), ""
        if checked.spec is None:
            return checked
        if checked.kind not in IN_PROFILES:
            reason = f"{checked.kind}: no parameters of its own"
        elif checked.kernel.duration_us < SHORTEST_LAUNCH_US:
            reason = f"shorter than {SHORTEST_LAUNCH_US} us"
        return _without_spec(checked, reason) if reason else checked

    def add(self, mapped: Mapped, time_us: float) -> None:
        """Count a launch, with a spec or without."""
        self.tally.add(mapped)
        if mapped.spec is not None:
            self.groups.setdefault((mapped.kind, mapped.spec), []).append(time_us)

    def add_collective(self, mapped: Mapped, known: Collectives) -> None:
        """Count a collective by its own time, under the models that are of it.

        On vector cores it is what steps have; of another it is not known which it is like.
        """
        own_us = known.own_us.get(mapped.kernel.name, 0.0)
        if isinstance(mapped.spec, Collective | HcclCollective) and own_us < SHORTEST_LAUNCH_US:
            mapped = _without_spec(
                mapped, "collectives whose time without the wait for others was not recorded"
            )
        self.add(mapped, own_us)
        if isinstance(mapped.spec, HcclCollective):
            spec = in_steps(mapped.spec)
            self.groups.setdefault((spec.kind, spec), []).append(own_us)


def _without_spec(mapped: Mapped, reason: str) -> Mapped:
    return Mapped(mapped.kernel, mapped.kind, None, reason)


@dataclass(slots=True)
class _Exchanges:
    """Dispatches and combines over several dies, launch by launch over the ranks of a run."""

    counts: dict[tuple[int, str, OpSpec], int] = field(default_factory=dict)
    launches: dict[tuple[str, OpSpec, int], dict[int, Mapped]] = field(default_factory=dict)

    def take(self, rank: int, mapped: Mapped) -> bool:
        """Keep the launch until all ranks are read, if it is an exchange over several dies."""
        spec = mapped.spec
        if not isinstance(spec, Dispatch | Combine) or spec.ep == 1:
            return False
        step = mapped.kernel.step
        number = self.counts[rank, step, spec] = self.counts.get((rank, step, spec), 0) + 1
        self.launches.setdefault((step, spec, number), {})[rank] = mapped
        return True

    def give(self, found: _Found) -> None:
        """Add each launch once a group of ranks, or with the reason why its time is not known."""
        for (_, spec, _), by_rank in self.launches.items():
            ep = getattr(spec, "ep", 1)
            ranks = sorted(by_rank)
            for first in range(0, len(ranks), ep):
                group = [by_rank[rank] for rank in ranks[first : first + ep]]
                _add_group(found, group, complete=len(group) == ep)


def _add_group(found: _Found, group: Sequence[Mapped], *, complete: bool) -> None:
    last = min(group, key=lambda mapped: mapped.kernel.duration_us)
    for mapped in group:
        if not complete:
            found.add(_without_spec(mapped, f"{mapped.kind}: not all of its ranks are here"), 0.0)
        elif mapped is last:
            found.add(mapped, mapped.kernel.duration_us)
        else:
            found.add(_without_spec(mapped, f"{mapped.kind}: waited for its last rank"), 0.0)


def _rows(
    groups: Mapping[tuple[str, OpSpec], Sequence[float]], hardware: str, source: str
) -> Iterable[KernelRow]:
    kinds: dict[str, list[tuple[OpSpec, Sequence[float]]]] = {}
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
