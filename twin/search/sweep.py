"""The sweep: every candidate of a space simulated, or proven to be beaten, by workers."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from twin.engine.compiled import warm_up
from twin.search.explore import Found, Levels
from twin.search.explorer import Explorer, Outline, Task
from twin.search.feasible import Rejection
from twin.search.pool import Workers
from twin.search.shards import Shards
from twin.search.structure import Infeasible

# Sets with more candidates than this are shared out over the workers, in about as many tasks
# as this at most.
_SHARED = 4096
_TASKS = 4096
DEADLOCK = "deadlock"


@dataclass(frozen=True, slots=True)
class Point:
    """One simulated candidate: its latency (TPOT or TTFT) and throughput."""

    index: int
    latency_us: float
    tokens_per_s_per_die: float


@dataclass
class Sweep:
    """What a sweep says; each candidate counts in one of the numbers.

    ``points`` are those within the tolerance of the best of their structure's scale,
    ``best_by_level`` the best simulated ones with each level of each knob, both by index.
    ``taken`` counts the shards that were on disk already; sweeps that differ in it are equal.
    """

    points: list[Point] = field(default_factory=list)
    best_by_level: list[Point] = field(default_factory=list)
    simulated: int = 0
    pruned: int = 0
    open: int = 0
    open_bound_us: float = math.inf
    infeasible: Counter[str] = field(default_factory=Counter)
    nearest: Rejection | None = None
    taken: int = field(default=0, compare=False)

    @property
    def feasible(self) -> int:
        """Candidates that can run."""
        return self.simulated + self.pruned + self.open

    def reject(self, infeasible: Infeasible) -> None:
        """Count what is out."""
        self.infeasible.update(infeasible.counts)
        other = infeasible.nearest
        if other is not None and (
            self.nearest is None
            or (other.excess, other.detail) < (self.nearest.excess, self.nearest.detail)
        ):
            self.nearest = other

    def add(self, found: Found, scale: float) -> None:
        """Count what was explored."""
        for points, pairs in (
            (self.points, found.points),
            (self.best_by_level, found.best_by_level),
        ):
            points += [Point(index, us, scale / us) for index, us in pairs]
        self.simulated += found.simulated - found.deadlocked
        self.pruned += found.pruned
        self.open += found.open
        self.open_bound_us = min(self.open_bound_us, found.open_bound_us)
        if found.deadlocked:
            self.reject(
                Infeasible({DEADLOCK: found.deadlocked}, Rejection(DEADLOCK, DEADLOCK, 1.0))
            )


def sweep(explorer: Explorer, workers: Workers, folder: Path, budget: int) -> Sweep:
    """The same for any workers.

    What each task found lands in the run folder's shards as it comes; tasks that are there
    already (of a run that was interrupted) are taken from them.

    Raises:
        InputError: the run folder cannot be written or read.
    """
    shards = Shards(folder)
    title = "searching" if explorer.options.contention else "searching without contention"
    with _Bar(title, explorer.space.size) as bar:
        return _Run(explorer, workers, budget, shards, bar).run()


@dataclass
class _Run:
    explorer: Explorer
    workers: Workers
    budget: int
    shards: Shards
    bar: _Bar
    total: Sweep = field(default_factory=Sweep)

    def run(self) -> Sweep:
        warm_up()
        outlines = self._outlines()
        descents = self._descents(outlines)
        tasks = list(self._tasks(outlines, {scale: us for scale, (us, _) in descents.items()}))
        answered = set()
        for task, found in zip(tasks, self._explored(tasks), strict=True):
            scale = outlines[task.structure].scale
            self.total.add(found, scale)
            if found.points:
                answered.add(scale)
        self._keep(descents, answered)
        return self.total

    def _explored(self, tasks: Sequence[Task]) -> list[Found]:
        """What each task finds, in their order: of an earlier run, or explored now."""
        keys = [self._key(task) for task in tasks]
        found = {place: known for place, key in enumerate(keys) if (known := self.shards.read(key))}
        self.total.taken = len(found)
        for place, known in found.items():
            self.bar.advance(tasks[place].size, known)
        left = [place for place in range(len(tasks)) if place not in found]
        new = self.workers.unordered(self.explorer.explore, [tasks[place] for place in left])
        for at, result in new:
            place = left[at]
            self.shards.write(keys[place], result)
            found[place] = result
            self.bar.advance(tasks[place].size, result)
        return [found[place] for place in range(len(tasks))]

    def _keep(
        self, descents: Mapping[float, tuple[float, int | None]], answered: Set[float]
    ) -> None:
        """Where the budget was spent before anything as fast was found, the descent stands."""
        for scale, (us, index) in descents.items():
            if index is not None and scale not in answered:
                self.total.points.append(Point(index, us, scale / us))

    def _outlines(self) -> list[Outline]:
        # The largest first: one of them that comes last would keep the others waiting.
        numbers = sorted(range(len(self.explorer.fixed)), key=self.explorer.effort, reverse=True)
        if len(numbers) < self.workers.count:
            numbers *= self.workers.count  # none waits: each makes what it will explore
        found: dict[int, Outline] = {}
        for at, outline in self.workers.unordered(self.explorer.outline, numbers):
            if numbers[at] not in found:
                self.bar.advance(sum(outline.infeasible.counts.values()))
            found[numbers[at]] = outline
        outlines = [found[number] for number in sorted(found)]
        for outline in outlines:
            self.total.reject(outline.infeasible)
        return outlines

    def _descents(self, outlines: Sequence[Outline]) -> dict[float, tuple[float, int | None]]:
        """For each scale, a good candidate of its most promising structure: latency and index."""
        promising: dict[float, int] = {}
        for number, outline in enumerate(outlines):
            known = promising.get(outline.scale)
            if outline.is_feasible and (
                known is None or outline.bound_us < outlines[known].bound_us
            ):
                promising[outline.scale] = number
        # Every worker makes the most promising structures, which it will explore, at once.
        numbers = [number for number in promising.values() for _ in range(self.workers.count)]
        found = list(self.workers.map(self.explorer.descend, numbers))
        return dict(zip(promising, found[:: self.workers.count], strict=True))

    def _tasks(self, outlines: Sequence[Outline], cutoffs: dict[float, float]) -> Iterator[Task]:
        """What is left to explore; structures that cannot compete are counted as pruned."""
        kept = []
        for number, outline in enumerate(outlines):
            if not outline.is_feasible:
                continue
            count = math.prod(len(each) for each in outline.allowed)
            if outline.bound_us > cutoffs[outline.scale] * (1 + self.explorer.tolerance):
                self.total.pruned += count
                self.bar.advance(count)
            else:
                kept.append((number, outline, count))
        most = max(_SHARED, sum(count for *_, count in kept) // _TASKS)
        left = [
            (number, part, cutoffs[outline.scale])
            for number, outline, _ in kept
            for part in _parts(outline.allowed, most)
        ]
        for number, part, cutoff_us in left:
            yield Task(number, part, cutoff_us, max(1, self.budget // len(left)))

    def _key(self, task: Task) -> str:
        text = f"{self.explorer.fingerprint} {task}"
        return hashlib.sha256(text.encode()).hexdigest()


def _parts(levels: Levels, most: int) -> Iterator[Levels]:
    """A set of candidates in parts of at most so many: cut along one axis after the other."""
    sizes = [len(each) for each in levels]
    if math.prod(sizes) <= most:
        yield levels
        return
    longest = sizes.index(max(sizes))
    for level in levels[longest]:
        yield from _parts([*levels[:longest], [level], *levels[longest + 1 :]], most)


class _Bar:
    """The progress bar of a sweep: candidates decided, a second, and the best so far."""

    def __init__(self, title: str, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[so_far]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(title, total=total, so_far="compiling")
        self._began = time.perf_counter()
        self._simulated, self._best_us = 0, math.inf

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, count: int, found: Found | None = None) -> None:
        """So many more candidates are decided."""
        if found is not None:
            self._simulated += found.simulated
            self._best_us = min([self._best_us, *(us for _, us in found.points)])
        rate = f"{self._simulated / (time.perf_counter() - self._began):.0f} simulated/s"
        best = "" if math.isinf(self._best_us) else f", best {self._best_us / 1e3:.3f} ms"
        self._progress.update(self._task, advance=count, so_far=rate + best)
