"""The real torch_npu wheel, kept in a folder of its own that no ordinary import sees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hardware_models.errors import MachineError

RELEASE = "2.13.0"
PACKAGES = (
    f"torch_npu=={RELEASE}",
    "attrs",
    "cloudpickle",
    "decorator",
    "packaging",
    "protobuf",
    "psutil",
)
"""torch_npu and what it imports beyond this project's own dependencies.

They are installed without dependencies: torch must stay the one that is there.
"""

FETCH = f"{Path(sys.executable).name} -m runtime_npu.standins"


def cache_folder() -> Path:
    """Where wheel and stand-ins are kept: LONGCAT_TWIN_CACHE, or under the user's cache."""
    own = os.environ.get("LONGCAT_TWIN_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "longcat-twin"


def wheel_folder() -> Path:
    """The folder of this interpreter's copy, whether it exists or not."""
    return cache_folder() / f"torch_npu-{RELEASE}-{sys.implementation.cache_tag}"


def find_wheel() -> Path:
    """The folder with torch_npu in it.

    Raises:
        MachineError: it was not fetched.
    """
    folder = wheel_folder()
    if not (folder / "torch_npu").is_dir():
        raise MachineError(
            f"the torch_npu {RELEASE} wheel is not at {folder}; `{FETCH}` fetches it (44 MB)"
        )
    return folder


def fetch_wheel() -> Path:
    """Install the wheel with pip into its folder, unless it is there.

    Raises:
        MachineError: pip cannot get it.
    """
    folder = wheel_folder()
    if (folder / "torch_npu").is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Only a whole copy may take the folder's name.
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(partial), *PACKAGES], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        shutil.rmtree(partial)
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise MachineError(f"pip cannot install torch_npu {RELEASE}: {reason}")
    try:
        partial.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(partial)
        return find_wheel()
    return folder
