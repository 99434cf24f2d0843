"""The sweep: every candidate of a space simulated, or proven to be beaten, in processes."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hardware_models.errors import InputError
from twin.engine.compiled import warm_up
from twin.engine.options import DEFAULT_OPTIONS, EngineOptions
from twin.evaluate import throughput_of
from twin.schedule_io import dump_schedule
from twin.search.explore import Found, Levels, descend, explore, root_bound_us
from twin.search.feasible import Rejection
from twin.search.pool import Workers
from twin.search.space import Space
from twin.search.structure import Infeasible, Structure, structural_places

# Sets with more candidates than this are shared out over the processes.
_SHARED = 4096
DEADLOCK = "deadlock"


@dataclass(frozen=True, slots=True)
class Point:
    """One simulated candidate: its latency (TPOT or TTFT) and throughput."""

    index: int
    latency_us: float
    tokens_per_s_per_die: float


@dataclass(frozen=True)
class Outline:
    """One structure before its candidates are looked at.

    ``scale`` is throughput x latency: structures with the same one compete in latency alone.
    """

    size: int
    infeasible: Infeasible
    allowed: Levels
    scale: float
    bound_us: float

    @property
    def is_feasible(self) -> bool:
        """Whether any candidate is."""
        return self.scale > 0.0


@dataclass(frozen=True)
class Task:
    """A set of candidates of one structure, and the latency that they have to compete with."""

    structure: int
    levels: Levels
    cutoff_us: float
    budget: int

    @property
    def size(self) -> int:
        """How many candidates it has."""
        return math.prod(len(each) for each in self.levels)


@dataclass
class Sweep:
    """What a sweep says; each candidate counts in one of the numbers.

    ``points`` are those within the tolerance of the best of their structure's scale,
    ``best_by_level`` the best simulated ones with each level of each knob, both by index.
    """

    points: list[Point] = field(default_factory=list)
    best_by_level: list[Point] = field(default_factory=list)
    simulated: int = 0
    pruned: int = 0
    open: int = 0
    open_bound_us: float = math.inf
    infeasible: Counter[str] = field(default_factory=Counter)
    nearest: Rejection | None = None

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


class Explorer:
    """What the processes are sent: the space, and functions of a structure's number.

    Structures stay in each process, under the space's key, from one call to the next.
    """

    _kept: dict[tuple[str, int], Structure] = {}  # noqa: RUF012 - one for each process

    def __init__(
        self, space: Space, tolerance: float, options: EngineOptions = DEFAULT_OPTIONS
    ) -> None:
        self.space, self.tolerance, self.options = space, tolerance, options
        self.fixed = list(structural_places(space))
        text = repr(
            (
                dump_schedule(space.base),
                space.model,
                list(space.hardware),
                space.levels,
                space.knobs,
            )
        )
        self.space_key = hashlib.sha256(text.encode()).hexdigest()
        whole = f"{text} {tolerance} {options}"
        self.fingerprint = hashlib.sha256(whole.encode()).hexdigest()

    def structure(self, number: int) -> Structure:
        """The structure with this number in the order of the space."""
        key = (self.space_key, number)
        if key not in self._kept:
            self._kept[key] = Structure(self.space, self.fixed[number])
        return self._kept[key]

    def forget(self) -> None:
        """Drop the structures that this process has made."""
        self._kept.clear()

    def outline(self, number: int) -> Outline:
        """Feasible levels and a bound."""
        it = self.structure(number)
        if not it.is_feasible:
            return Outline(it.size, it.infeasible, [], 0.0, math.inf)
        scale = throughput_of(it.schedule(it.plan_levels), 1.0)
        allowed = [list(range(len(each))) for each in it.allowed]
        return Outline(it.size, it.infeasible, allowed, scale, root_bound_us(it, self.options))

    def descend(self, number: int) -> tuple[float, int | None]:
        """Latency in us of a good candidate, and its index."""
        return descend(self.structure(number), self.options)

    def explore(self, task: Task) -> Found:
        """Simulate or prune."""
        it = self.structure(task.structure)
        return explore(it, task.levels, task.cutoff_us, self.tolerance, task.budget, self.options)


def sweep(explorer: Explorer, workers: Workers, folder: Path, budget: int) -> Sweep:
    """The same for any number of workers.

    What each task found is appended to ``points.jsonl`` in the run folder as it comes; tasks
    that are there already (of a run that was interrupted) are taken from it.

    Raises:
        InputError: the run folder cannot be written or read.
    """
    path = folder / "points.jsonl"
    try:
        done = _done(path)
        with path.open("a", encoding="utf-8") as shard, _Bar(explorer.space.size) as bar:
            return _Run(explorer, workers, budget, done, shard, bar).run()
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror})"
        raise InputError("output", str(folder), allowed) from None


@dataclass
class _Run:
    explorer: Explorer
    workers: Workers
    budget: int
    done: dict[str, Found]
    shard: TextIO
    bar: _Bar
    total: Sweep = field(default_factory=Sweep)
    answered: set[float] = field(default_factory=set)

    def run(self) -> Sweep:
        warm_up()
        outlines = self._outlines()
        descents = self._descents(outlines)
        tasks = list(self._tasks(outlines, {scale: us for scale, (us, _) in descents.items()}))
        left = [task for task in tasks if self._key(task) not in self.done]
        new = iter(self.workers.map(self.explorer.explore, left))
        for task in tasks:
            key = self._key(task)
            found = self.done.get(key)
            if found is None:
                found = next(new)
                self.shard.write(json.dumps({"key": key, "found": asdict(found)}) + "\n")
                self.shard.flush()
            scale = outlines[task.structure].scale
            self.total.add(found, scale)
            if found.points:
                self.answered.add(scale)
            self.bar.advance(task.size, self.total)
        self._keep(descents)
        return self.total

    def _keep(self, descents: Mapping[float, tuple[float, int | None]]) -> None:
        """Where the budget was spent before anything as fast was found, the descent stands."""
        for scale, (us, index) in descents.items():
            if index is not None and scale not in self.answered:
                self.total.points.append(Point(index, us, scale / us))

    def _outlines(self) -> list[Outline]:
        numbers = range(len(self.explorer.fixed))
        outlines = []
        for outline in self.workers.map(self.explorer.outline, numbers):
            outlines.append(outline)
            self.total.reject(outline.infeasible)
            self.bar.advance(sum(outline.infeasible.counts.values()), self.total)
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
        found = self.workers.map(self.explorer.descend, list(promising.values()))
        return dict(zip(promising, found, strict=True))

    def _tasks(self, outlines: Sequence[Outline], cutoffs: dict[float, float]) -> Iterator[Task]:
        """What is left to explore; structures that cannot compete are counted as pruned."""
        left = []
        for number, outline in enumerate(outlines):
            if not outline.is_feasible:
                continue
            cutoff_us = cutoffs[outline.scale]
            if outline.bound_us > cutoff_us * (1 + self.explorer.tolerance):
                count = math.prod(len(each) for each in outline.allowed)
                self.total.pruned += count
                self.bar.advance(count, self.total)
                continue
            left += [(number, part, cutoff_us) for part in _parts(outline.allowed)]
        for number, part, cutoff_us in left:
            yield Task(number, part, cutoff_us, max(1, self.budget // len(left)))

    def _key(self, task: Task) -> str:
        text = f"{self.explorer.fingerprint} {task}"
        return hashlib.sha256(text.encode()).hexdigest()


def _parts(levels: Levels) -> Iterator[Levels]:
    """A set of candidates in parts that are small: cut along one axis after the other."""
    sizes = [len(each) for each in levels]
    if math.prod(sizes) <= _SHARED:
        yield levels
        return
    longest = sizes.index(max(sizes))
    for level in levels[longest]:
        yield from _parts([*levels[:longest], [level], *levels[longest + 1 :]])


def _done(path: Path) -> dict[str, Found]:
    """What an interrupted run left; a line that was cut off is dropped from the file."""
    if not path.exists():
        return {}
    lines = path.read_text("utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        path.write_text("".join(whole), "utf-8")
    return dict(_parsed(whole, path))


def _parsed(lines: Iterable[str], path: Path) -> Iterator[tuple[str, Found]]:
    for number, line in enumerate(lines, 1):
        try:
            item = json.loads(line)
            found = item["found"]
            for name in ("points", "best_by_level"):
                found[name] = tuple((int(index), float(us)) for index, us in found[name])
            yield str(item["key"]), Found(**found)
        except (ValueError, TypeError, KeyError):
            allowed = "the lines of a search that was interrupted, or no such file"
            raise InputError("output", f"{path}:{number}", allowed) from None


class _Bar:
    """The progress bar of a sweep: candidates decided, a second, and the best so far."""

    def __init__(self, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[so_far]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("searching", total=total, so_far="compiling")
        self._began = time.perf_counter()

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, count: int, total: Sweep) -> None:
        """So many more candidates are decided."""
        best_us = min((point.latency_us for point in total.points), default=math.inf)
        rate = f"{total.simulated / (time.perf_counter() - self._began):.0f} simulated/s"
        so_far = f"{rate}, best {best_us / 1e3:.3f} ms" if best_us < math.inf else rate
        self._progress.update(self._task, advance=count, so_far=so_far)
