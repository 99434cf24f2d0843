from pathlib import Path

import pytest

from hardware_models.errors import MachineError
from runtime_npu.standins.build import built_standins


@pytest.fixture(scope="session")
def standins() -> Path:
    """The folder of the stand-ins; skips, and says why, where they cannot be built."""
    try:
        return built_standins()
    except MachineError as error:
        pytest.skip(str(error))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Path:
    """This folder, whose modules the children of a test can import."""
    folder = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder
