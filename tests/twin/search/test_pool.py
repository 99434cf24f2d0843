"""Worker processes: order, early ends, errors and killed workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hardware_models.errors import InputError, MachineError
from twin.search.pool import Processes, available_cpus


def touch(path: Path) -> str:
    path.touch()
    return path.name


def identity(value: int) -> int:
    return value


def invert(value: int) -> float:
    return 1 / value


def refused(value: int) -> int:
    raise InputError("field", value, "nothing", "source.yaml")


def is_other() -> bool:
    """Whether this is not the first process, which works too."""
    return multiprocessing.parent_process() is not None


def killed(folder: Path) -> None:
    """Kill the other process; the first one waits until it has begun."""
    if is_other():
        (folder / "begun").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for(folder / "begun")


def interrupted(folder: Path) -> bool:
    """Interrupt the other process; the first one waits until it has begun."""
    if is_other():
        (folder / "begun").touch()
        os.kill(os.getpid(), signal.SIGINT)
    wait_for(folder / "begun")
    return is_other()


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def process(folder: Path) -> int:
    """This process's id, once two have begun."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
    return os.getpid()


class Counting:
    """Work of two processes that says how often it was unpickled in each."""

    unpickled = 0

    def __getstate__(self) -> object:
        return "pickled"

    def __setstate__(self, state: object) -> None:
        type(self).unpickled += 1

    def __call__(self, folder: Path) -> int:
        process(folder)
        return type(self).unpickled


def mapped(work: Callable[[Any], Any], items: Sequence[Any], workers: int) -> list[Any]:
    with Processes(workers) as pool:
        return list(pool.map(work, items))


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers: int) -> None:
    assert mapped(invert, [4, 2, 1], workers) == [0.25, 0.5, 1]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_work_comes_through(workers: int) -> None:
    with pytest.raises(ZeroDivisionError):
        mapped(invert, [1, 0, 2], workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_input_error_keeps_its_words(workers: int) -> None:
    with pytest.raises(InputError, match=r"source.yaml: field: got 1; allowed: nothing") as caught:
        mapped(refused, [1, 2], workers)
    assert (caught.value.field, caught.value.value) == ("field", 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_leaving_early_drops_what_has_not_begun(workers: int, tmp_path: Path) -> None:
    items = [tmp_path / f"{number:03}" for number in range(2000)]
    with Processes(workers) as pool:
        assert next(iter(pool.map(touch, items))) == "000"
    assert len(list(tmp_path.iterdir())) < len(items)


def test_a_killed_worker_is_an_error_not_a_hang(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="killed"):
        mapped(killed, [tmp_path] * 3, 2)


def test_one_pool_serves_several_calls() -> None:
    with Processes(2) as pool:
        first = set(pool.map(identity, [1, 2, 3, 4]))
        assert first == set(pool.map(identity, [1, 2, 3, 4]))


def test_workers_leave_ctrl_c_to_the_first_process(tmp_path: Path) -> None:
    assert sorted(mapped(interrupted, [tmp_path] * 2, 2)) == [False, True]


def test_the_first_process_works_too(tmp_path: Path) -> None:
    ids = set(mapped(process, [tmp_path] * 2, 2))
    assert len(ids) == 2
    assert os.getpid() in ids


def test_results_land_as_they_are_done() -> None:
    with Processes(2) as pool:
        landed = list(pool.unordered(invert, [1, 2, 4, 8]))
    assert sorted(landed) == [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125)]


def test_the_work_is_unpickled_once_by_each_other_process(tmp_path: Path) -> None:
    assert set(mapped(Counting(), [tmp_path] * 50, 2)) == {0, 1}


ORPHANS = """
import os, signal, sys, time
from tests.twin.search.test_pool import process
from twin.search.pool import Processes
from pathlib import Path
with Processes(2) as pool:
    print(*pool.map(process, [Path(sys.argv[1])] * 2), os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_search_leaves_no_process_behind(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", ORPHANS, str(tmp_path)]
    ran = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    one, two, first = map(int, ran.stdout.split())
    (other,) = {one, two} - {first}
    while is_running(other):
        time.sleep(0.05)


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_there_is_a_cpu() -> None:
    assert available_cpus() >= 1
