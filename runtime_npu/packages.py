"""The packages that the runtime needs beyond the base package; itself it needs none of them."""

from __future__ import annotations

import importlib.util

from hardware_models.errors import MachineError

PACKAGES = ("torch", "safetensors")


def require_packages() -> None:
    """Check that they are there, so that a command can say what is missing.

    Raises:
        MachineError: one is not installed.
    """
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MachineError(f"{package} is not installed: pip install 'longcat-twin[runtime]'")
