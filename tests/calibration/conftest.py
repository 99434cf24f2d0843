"""One run of the fit for all tests that look at its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration import fit
from twin.cli import run


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished ``calibration.fit``."""
    folder = tmp_path_factory.mktemp("fit")
    assert run("fit", fit.FitConfig, fit.main, [f"output={folder}"]) == 0
    return folder
