"""Worker processes: order, early ends, errors and killed workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from hardware_models.errors import InputError
from twin.search.pool import Workers, available_cpus


def touch(path: Path) -> str:
    path.touch()
    return path.name


def identity(value: int) -> int:
    return value


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


def mapped(work: Callable[[Any], Any], items: Sequence[Any], workers: int) -> list[Any]:
    with Workers(workers) as pool:
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
    with Workers(workers) as pool:
        assert next(iter(pool.map(touch, items))) == "000"
    assert len(list(tmp_path.iterdir())) < len(items)


def test_a_killed_worker_is_an_error_not_a_hang() -> None:
    with pytest.raises(BrokenProcessPool):
        mapped(killed, [1, 2], 2)


def test_one_pool_serves_several_calls() -> None:
    with Workers(2) as pool:
        first = set(pool.map(identity, [1, 2, 3, 4]))
        assert first == set(pool.map(identity, [1, 2, 3, 4]))


def test_workers_leave_ctrl_c_to_the_first_process() -> None:
    assert mapped(interrupted, [1, 2], 2) == [1, 2]


def test_there_is_a_cpu() -> None:
    assert available_cpus() >= 1
