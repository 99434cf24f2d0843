"""Branch and bound against brute force: the best, the ties, what is counted, what resumes."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twin.search.explorer as explorer_module
from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.choices import Level
from twin.evaluate import latencies
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.config import Knob
from twin.search.contention import ALONE
from twin.search.explore import Found, explore
from twin.search.explorer import Explorer, Task
from twin.search.feasible import rejected, rejection
from twin.search.pool import Processes
from twin.search.shards import SHARDS
from twin.search.space import Space
from twin.search.structure import Structure, structural_places
from twin.search.sweep import DEADLOCK, Sweep, sweep

HARDWARE = load_hardware("a3-752t")
ALL = 10**9
CORES = Knob(drives="cores", stage="stage2", levels=(4, 12, 16, 20))
MLA = Knob(
    drives="prefetch",
    levels=(0, 0.5, 1),
    weights={"attention.1.q_b": "dense.0.gate_up", "next.attention.0.q_b": "dense.1.down"},
)
DENSE = Knob(
    drives="prefetch",
    levels=(0, 1),
    weights={"dense.0.gate_up": "attention.0.o_proj", "dense.1.down": "dense.1.all_gather"},
)
W2 = Knob(drives="prefetch", role="ffn", levels=(0, 1), weights={"moe.w2": "moe.router_matmul"})
SPACES = {
    "colocated": ("recipe_colocated", {"cores": CORES, "mla": MLA, "dense": DENSE}, ()),
    "afd": (
        "recipe_afd",
        {
            "ratio": Knob(drives="ratio", levels=(1, 2, 3)),
            "micro_batches": Knob(drives="micro_batches", levels=(1, 2)),
            "mla": MLA,
            "w2": W2,
        },
        (),
    ),
    "vectors": (
        "recipe_colocated",
        {
            "cores": replace(CORES, levels=(24, 23, 16, 12)),
            "vectors": Knob(drives="vector_cores", stage="stage2", levels=(4, 12, 48, 24, 32)),
            "dense": DENSE,
        },
        (),
    ),
    "orders": (
        "recipe_colocated",
        {
            "stage1": Knob(
                drives="ends_after",
                stage="stage1",
                levels=("attention.0.post_norm", "dense.0.gate_up", "attention.1.uv", "add"),
            ),
            "drafts": Knob(drives="drafts", levels=(0, 1, 2)),
            "cores": CORES,
            "dense": DENSE,
        },
        (),
    ),
    "dies": ("recipe_colocated", {"cores": CORES, "dense": DENSE}, (32, 96, 128)),
}


@cache
def space_of(name: str) -> Space:
    base, knobs, dies = SPACES[name]
    schedule = load_schedule(base)
    return Space(schedule, load_model(schedule.model), HARDWARE, knobs, dies)


def verdict(space: Space, index: int) -> str | float:
    """The reason why a candidate is out, or its latency: nothing shared, nothing skipped."""
    try:
        schedule = space.schedule(index)
    except InputError as error:
        return rejected(error).reason
    reason = rejection(schedule, space.model, space.hardware)
    return reason.reason if reason else latencies(schedule, space.model, [HARDWARE])[0]


@cache
def brute_force(name: str) -> list[str | float]:
    return [verdict(space_of(name), index) for index in range(space_of(name).size)]


def swept(name: str, folder: Path, tolerance: float = 0.01, budget: int = ALL) -> Sweep:
    with Processes(1) as workers:
        return sweep(Explorer(space_of(name), tolerance), workers, folder, budget)


@pytest.mark.parametrize("name", SPACES)
def test_the_sweep_is_brute_force_with_less_work(name: str, tmp_path: Path) -> None:
    found, all_of = swept(name, tmp_path), brute_force(name)
    feasible = {i: us for i, us in enumerate(all_of) if isinstance(us, float)}
    reasons = Counter(reason for reason in all_of if isinstance(reason, str))
    assert found.feasible == len(feasible)
    assert found.infeasible == reasons
    assert 0 < found.simulated <= found.feasible
    best = min(feasible.values())
    ties = {i: us for i, us in feasible.items() if us <= best * 1.01}
    points = {p.index: p.latency_us for p in found.points if p.latency_us <= best * 1.01}
    assert points == pytest.approx(ties, rel=1e-9)
    for point in [*found.points, *found.best_by_level]:
        assert point.latency_us == pytest.approx(feasible[point.index], rel=1e-9)


def test_every_number_of_dies_keeps_its_best(tmp_path: Path) -> None:
    space = space_of("dies")
    best: dict[Level, float] = {}
    for index, us in enumerate(brute_force("dies")):
        if isinstance(us, float):
            dies = space.choice(index)["dies"]
            best[dies] = min(us, best.get(dies, us))
    found: dict[Level, float] = {}
    for point in swept("dies", tmp_path, tolerance=0.0).points:
        dies = space.choice(point.index)["dies"]
        found[dies] = min(point.latency_us, found.get(dies, point.latency_us))
    assert found == pytest.approx(best, rel=1e-9)


@settings(max_examples=25)
@given(st.sampled_from(sorted(SPACES)), st.data())
def test_a_structure_judges_candidates_as_each_is_judged_alone(
    name: str, data: st.DataObject
) -> None:
    space = space_of(name)
    fixed = data.draw(st.sampled_from(list(structural_places(space))))
    structure = Structure(space, fixed)
    levels = [data.draw(st.integers(0, len(axis.levels) - 1)) for axis in structure.axes]
    alone = verdict(space, structure.index(levels))
    together = structure.is_feasible and all(
        level in allowed for level, allowed in zip(levels, structure.allowed, strict=True)
    )
    assert together is isinstance(alone, float)


def test_a_spent_budget_leaves_a_bounded_rest(tmp_path: Path) -> None:
    found = swept("colocated", tmp_path, tolerance=0.2, budget=1)
    best = min(p.latency_us for p in found.points)
    if found.open:
        assert found.open_bound_us <= best * 1.2
    structure = Explorer(space_of("colocated"), 0.2).structure(0)
    everything = [list(range(len(each))) for each in structure.allowed]
    nothing = explore(structure, everything, 1e9, 0.2, budget=0)
    assert nothing.simulated == 0
    assert nothing.open == found.feasible
    feasible = [us for us in brute_force("colocated") if isinstance(us, float)]
    assert nothing.open_bound_us <= min(feasible)


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / SHARDS).iterdir()}


def test_an_interrupted_sweep_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = swept("dies", tmp_path)
    landed = shards(tmp_path)
    assert len(landed) > 1
    assert whole.taken == 0
    gone = sorted(landed)[0]
    (tmp_path / SHARDS / gone).unlink()
    (tmp_path / SHARDS / f"{gone}.partial").write_bytes(landed[gone][:-20])
    explored = []
    once = Explorer.explore

    def counted(self: Explorer, task: Task) -> Found:
        explored.append(task)
        return once(self, task)

    monkeypatch.setattr(Explorer, "explore", counted)
    for taken in (len(landed) - 1, len(landed)):
        again = swept("dies", tmp_path)
        assert again == whole
        assert again.taken == taken
        assert shards(tmp_path) == landed
        assert len(explored) == 1


def test_what_another_search_left_is_not_taken(tmp_path: Path) -> None:
    swept("afd", tmp_path)
    before = shards(tmp_path)
    assert swept("dies", tmp_path) == swept("dies", tmp_path / "..")
    assert before.items() < shards(tmp_path).items()
    assert DEADLOCK not in whole_reasons()


def test_whatever_a_space_differs_in_its_tasks_have_names_of_their_own() -> None:
    space = space_of("colocated")
    others = {
        "base": load_schedule("recipe_long_context"),
        "model": load_model("mid"),
        "hardware": HARDWARE.with_values({"sdma_gbps": HARDWARE["sdma_gbps"] / 2}),
        "knobs": {**space.knobs, "mla": replace(MLA, levels=(0, 0.25, 1))},
        "dies": (32,),
    }
    assert set(others) == {each.name for each in fields(Space)}
    spaces = [space, *(replace(space, **{name: other}) for name, other in others.items())]
    explorers = [Explorer(each, 0.01) for each in spaces]
    assert len({each.fingerprint for each in explorers}) == len(spaces)
    assert len({each.space_key for each in explorers}) == len(spaces)


def test_what_is_asked_of_a_space_names_its_tasks_too() -> None:
    space = space_of("colocated")
    asked = [Explorer(space, 0.01), Explorer(space, 0.02), Explorer(space, 0.01, ALONE)]
    assert len({each.fingerprint for each in asked}) == len(asked)
    # Structures are the same: each process makes them once.
    assert len({each.space_key for each in asked}) == 1


def test_what_another_version_left_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept("dies", tmp_path)
    before = shards(tmp_path)
    monkeypatch.setattr(explorer_module, "code_version", lambda: "longcat-twin 0.0.0")
    swept("dies", tmp_path)
    assert before.items() < shards(tmp_path).items()
    assert len(shards(tmp_path)) == 2 * len(before)


@pytest.mark.parametrize("wrong", [b"", b"PAR1", b"no Parquet at all", "another"])
def test_a_file_that_is_no_shard_is_named(wrong: bytes | str, tmp_path: Path) -> None:
    swept("dies", tmp_path)
    first, second, *_ = sorted((tmp_path / SHARDS).iterdir())
    first.write_bytes(second.read_bytes() if isinstance(wrong, str) else wrong)
    with pytest.raises(InputError, match=first.name):
        swept("dies", tmp_path)


def test_a_full_disk_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"output: .*No space left on device"):
        swept("dies", tmp_path)


def test_a_folder_that_cannot_be_made_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / SHARDS).write_text("a file")
    with pytest.raises(InputError, match=f"output: .*{SHARDS}"):
        swept("dies", tmp_path)


def whole_reasons() -> Sequence[str]:
    return [reason for name in SPACES for reason in brute_force(name) if isinstance(reason, str)]


def test_indices_of_structures_cover_the_space_once() -> None:
    for name in SPACES:
        space = space_of(name)
        seen = Counter(
            structure.index(levels)
            for fixed in structural_places(space)
            for structure in [Structure(space, fixed)]
            for levels in itertools.product(*(range(len(a.levels)) for a in structure.axes))
        )
        assert seen == dict.fromkeys(range(space.size), 1)
        for index in (0, space.size - 1):
            assert replace(space.schedule(index)) == space.schedule(index)
