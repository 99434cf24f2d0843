from pathlib import Path

import pytest


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Path:
    """This folder, whose modules the children of a test can import."""
    folder = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder
