"""Worker processes: order, early ends, errors and killed workers."""

from __future__ import annotations

import os
import signal
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path

import pytest

from hardware_models.errors import InputError
from twin.search.pool import available_cpus, ordered_map


def touch(path: Path) -> str:
    path.touch()
    return path.name


def invert(value: int) -> float:
    return 1 / value


def refused(value: int) -> int:
    raise InputError("field", value, "nothing", "source.yaml")


def killed(value: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return value


def interrupted(value: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return value


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers: int) -> None:
    assert list(ordered_map(invert, [4, 2, 1], workers)) == [0.25, 0.5, 1]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_work_comes_through(workers: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(ordered_map(invert, [1, 0, 2], workers))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_input_error_keeps_its_words(workers: int) -> None:
    with pytest.raises(InputError, match=r"source.yaml: field: got 1; allowed: nothing") as caught:
        list(ordered_map(refused, [1, 2], workers))
    assert (caught.value.field, caught.value.value) == ("field", 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_leaving_early_drops_what_has_not_begun(workers: int, tmp_path: Path) -> None:
    items = [tmp_path / f"{number:03}" for number in range(2000)]
    with closing(ordered_map(touch, items, workers)) as results:
        assert next(results) == "000"
    assert len(list(tmp_path.iterdir())) < len(items)


def test_a_killed_worker_is_an_error_not_a_hang() -> None:
    with pytest.raises(BrokenProcessPool):
        list(ordered_map(killed, [1, 2], 2))


def test_workers_leave_ctrl_c_to_the_first_process() -> None:
    assert list(ordered_map(interrupted, [1, 2], 2)) == [1, 2]


def test_there_is_a_cpu() -> None:
    assert available_cpus() >= 1
