from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from oracle import SPECS, oracle, write
from rank_pool import MOST_RANKS, RankPool

from hardware_models.errors import MachineError
from runtime_npu.standins.build import built_standins


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Tiny tensors gain nothing from more, and threads of parallel tests would wait for each other.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The random checkpoint of a model in SPECS, made once a session."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = write(tmp_path_factory.mktemp(name) / "checkpoint", SPECS[name], seed=1)
        return made[name]

    return get


@pytest.fixture(scope="session")
def oracle_of(checkpoint_of: Callable[[str], Path]) -> Callable[[str], torch.nn.Module]:
    """transformers' model of a checkpoint, loaded once a session."""
    loaded: dict[str, torch.nn.Module] = {}

    def get(name: str) -> torch.nn.Module:
        if name not in loaded:
            loaded[name] = oracle(checkpoint_of(name))
        return loaded[name]

    return get


@pytest.fixture(scope="module")
def rank_pool() -> Iterator[RankPool]:
    with ProcessPoolExecutor(MOST_RANKS, get_context("spawn")) as processes:
        yield RankPool(processes)


@pytest.fixture(scope="session")
def standins() -> Path:
    """The folder of the stand-ins for CANN; skips, and says why, where they cannot be built."""
    try:
        return built_standins()
    except MachineError as error:
        pytest.skip(str(error))
