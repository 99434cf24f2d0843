from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from hypothesis import register_random
from layouts import SPECS as SPLIT_SPECS
from oracle import SPECS, oracle, oracle_run, prompts_of, write
from rank_pool import MOST_RANKS, RankPool

from hardware_models.errors import MachineError
from runtime_npu.standins.build import built_standins

MODELS = {**SPECS, **SPLIT_SPECS}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Tiny tensors gain nothing from more, and threads of parallel tests would wait for each other.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # Chance that a test forgot to seed would fail one run in many, and not the one after it.
    torch.manual_seed(0)


class _TorchChance:
    """torch's generator as hypothesis sees Python's own: the same at the start of each example."""

    def seed(self, value: int) -> None:
        torch.manual_seed(value)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


_CHANCE = _TorchChance()  # hypothesis keeps no reference of its own
register_random(_CHANCE)


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The random checkpoint of a model in MODELS, made once a session."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = write(tmp_path_factory.mktemp(name) / "checkpoint", MODELS[name], seed=1)
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


@pytest.fixture(scope="session")
def decoded(
    oracle_of: Callable[[str], torch.nn.Module],
) -> Callable[[str, Sequence[int], int], tuple[list[list[int]], list[torch.Tensor]]]:
    """transformers' tokens and logits of so many steps, for prompts of these lengths."""

    def get(
        name: str, lengths: Sequence[int], steps: int
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        prompts = prompts_of(MODELS[name], lengths)
        runs = [oracle_run(oracle_of(name), prompt, steps) for prompt in prompts]
        return [run[0] for run in runs], [run[2] for run in runs]

    return cache(get)


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
