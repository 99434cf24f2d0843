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
